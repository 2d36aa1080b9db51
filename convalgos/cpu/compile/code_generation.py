"""From LLVM's text to machine code for this processor, and its way into the process.

Code goes the same way whether it was compiled now or comes from disk: as an object file, linked by itself,
so that names of functions never meet. LLVM is loaded where something is compiled, and only there.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from convalgos.core.compiler_record import keep_compiler, known_compiler
from convalgos.core.errors import Unsupported, not_imported
from convalgos.cpu.compile import linker
from convalgos.cpu.compile.single_lanes import stored_by_themselves

LEVEL = 3  # of the optimisation

_linked: list[Any] = []  # what holds code that LLVM has loaded, for the life of the process


def processor() -> tuple[str, str, str]:
    """(triple, name, features) of what code is made for.

    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are honoured.
    """
    triple, name, features = compiler()["target"]
    return triple, name, features


@cache
def has(*features: str) -> bool:
    """Whether code may use all of some features of processors, by LLVM's names: "avx512vnni", "amx-int8"."""
    return {f"+{name}" for name in features} <= set(processor()[2].split(","))


@cache
def compiler() -> dict[str, Any]:
    """What turns text into code, and for which processor: as JSON tells it apart."""
    known = known_compiler()
    if known is not None and known["level"] == LEVEL:
        return known
    import llvmlite

    binding = _llvm()
    told = {
        "llvmlite": llvmlite.__version__,
        "llvm": list(binding.llvm_version_info),
        "target": list(_asked_processor()),
        "level": LEVEL,
    }
    keep_compiler(told)
    return told


def object_code(text: str) -> tuple[list[str], bytes]:
    """(names that it needs, object code) of a module in LLVM's text."""
    binding, target = _llvm(), _target()
    module = binding.parse_assembly(text, binding.create_context())
    module.triple, module.data_layout = processor()[0], str(target.target_data)
    module.verify()
    tuning = binding.create_pipeline_tuning_options(LEVEL)
    tuning.loop_vectorization, tuning.slp_vectorization = True, False
    passes = binding.create_pass_builder(target, tuning)
    passes.getModulePassManager().run(module, passes)
    optimised = str(module)
    if (mended := stored_by_themselves(optimised)) != optimised:
        module = binding.parse_assembly(mended, binding.create_context())
        module.verify()
    declared = [v.name for v in (*module.functions, *module.global_variables) if v.is_declaration]
    return [name for name in declared if not name.startswith("llvm.")], target.emit_object(module)


def link(name: str, needs: list[str], code: bytes) -> int:
    """The address of a function in object code, alone.

    Raises:
        ValueError: it needs what the process does not have, or does not define the function.
    """
    try:
        return linker.load_object(name, needs, code)
    except linker.Unlinkable:
        return _linked_by_llvm(name, needs, code)


class Lock:
    """LLVM's own lock, as forks wait for it; free as long as LLVM is not loaded, or hides it."""

    def __init__(self) -> None:
        self._taken: Any = None

    def acquire(self, timeout: float) -> bool:
        lib = _llvm().ffi.lib if _llvm.cache_info().currsize else None
        self._taken = getattr(getattr(lib, "_lock", None), "_lock", None)
        return self._taken is None or self._taken.acquire(timeout=timeout)

    def release(self) -> None:
        if self._taken is not None:
            self._taken.release()

    def _at_fork_reinit(self) -> None:
        if self._taken is not None:
            self._taken._at_fork_reinit()


# --- inside ----------------------------------------------------------------------------------


@cache
def _llvm() -> Any:
    """The functions of LLVM, whose library is loaded for them.

    Raises:
        Unsupported: it cannot be.
    """
    try:
        from llvmlite import binding
    except Exception as error:  # of any kind, where it does not go with what else is installed
        raise Unsupported(not_imported("llvmlite", error)) from None
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def _asked_processor() -> tuple[str, str, str]:
    """As LLVM tells it."""
    binding = _llvm()
    name = os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES", "" if name.lower() == "generic" else None)
    if features is None:
        try:
            features = binding.get_host_cpu_features().flatten()
        except RuntimeError:  # LLVM cannot tell
            features = ""
    return binding.get_process_triple(), name, features


def _linked_by_llvm(name: str, needs: list[str], code: bytes) -> int:
    """The same by an engine of LLVM's."""
    binding = _llvm()
    target = binding.Target.from_triple(binding.get_process_triple()).create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target)
    # only now the functions of the process are known
    if missing := [need for need in needs if not binding.address_of_symbol(need)]:
        raise ValueError(f"it calls {missing[0]}, which is not there")  # LLVM would end the process
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _linked.append(engine)
    if not (address := engine.get_function_address(name)):
        raise ValueError(f"it does not define {name}")
    return int(address)


@cache
def _target() -> Any:
    triple, name, features = processor()
    # code of the processor that runs it, loaded anywhere: no relocation through tables
    relocation = "static" if triple.startswith(("x86", "i386", "i686")) else "default"
    return (
        _llvm()
        .Target.from_triple(triple)
        .create_target_machine(
            cpu=name, features=features, opt=LEVEL, reloc=relocation, codemodel="jitdefault", jit=True
        )
    )
