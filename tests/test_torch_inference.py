"""Filters that modules keep prepared: never one that is out of date, nor where an operator is asked for."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import convalgos as ca  # noqa: E402
import convalgos.torch as ct  # noqa: E402
from convalgos.core import plan  # noqa: E402
from convalgos.torch import inference, operators, training  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
X = torch.arange(2 * 4 * 9 * 9, dtype=torch.float32).remainder(7).sub(3).reshape(2, 4, 9, 9)


def layer(**how) -> nn.Conv2d:
    torch.manual_seed(1)
    module = nn.Conv2d(4, 6, 3, padding=1, **how).eval()
    with torch.no_grad():
        module.weight.copy_(torch.randint(-3, 4, module.weight.shape))
        module.bias.copy_(torch.arange(6))
    ct.replace(module)
    return module


def expected(module, x=X):
    how = module.stride, module.padding, module.dilation, module.groups
    return F.conv2d(x, module.weight, module.bias, *how).detach()


@pytest.fixture
def counted(monkeypatch):
    """How often an operator was called, or a call recorded without it, and a filter prepared."""
    seen = {"operator": 0, "recorded": 0, "prepared": 0}
    operator, own_form, recorded = operators.conv, plan.Plan._in_own_form, training.record_call

    class Counted:
        directly = staticmethod(operator.directly)

        def __call__(self, *inputs):
            seen["operator"] += 1
            return operator(*inputs)

    def in_own_form(self, *given):
        seen["prepared"] += 1
        return own_form(self, *given)

    def record(*given):
        seen["recorded"] += 1
        return recorded(*given)

    cell = next(
        c for c in ct.functions.autograd.conv.__closure__ if getattr(c.cell_contents, "directly", None)
    )
    before = cell.cell_contents
    cell.cell_contents = Counted()
    monkeypatch.setattr(plan.Plan, "_in_own_form", in_own_form)
    monkeypatch.setattr(training, "record_call", record)
    yield seen
    cell.cell_contents = before


def functional(module):
    """The same call by the function."""
    return lambda x: ct.conv2d(x, module.weight, module.bias, module.stride, module.padding)


def check(module, x=X, call=None):
    with torch.no_grad():
        torch.testing.assert_close((call or module)(x), expected(module, x), rtol=1e-4, atol=1e-4)


def test_a_filter_is_prepared_once(counted):
    module = layer()
    for _ in range(4):
        check(module)
    assert counted == {"operator": 0, "recorded": 0, "prepared": 1}
    check(module, X[:1])
    check(module, X.to(memory_format=torch.channels_last))
    check(module)
    steps = module.__dict__[inference.ATTRIBUTE].held.steps.values()
    forms = {id(step.prepared) for step in steps}
    assert len(steps) == 3 and len(forms) == len({step.plan._key for step in steps})
    assert counted == {"operator": 0, "recorded": 0, "prepared": len(forms)}


WRITES = {  # everything that may change a filter: (module) -> None
    "in place": lambda m: m.weight.mul_(2),
    "an element": lambda m: m.weight[1, 2].add_(1),
    "a view": lambda m: m.weight.view(-1)[3:9].zero_(),
    "detached": lambda m: m.weight.detach().add_(1),
    "init": lambda m: nn.init.normal_(m.weight),
    "load_state_dict": lambda m: m.load_state_dict({"weight": torch.ones(6, 4, 3, 3), "bias": torch.ones(6)}),
    "load_state_dict assigns": lambda m: m.load_state_dict(
        {"weight": torch.ones(6, 4, 3, 3), "bias": torch.ones(6)}, assign=True
    ),
    "another parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(6, 4, 3, 3))),
    "data": lambda m: setattr(m.weight, "data", torch.ones(6, 4, 3, 3)),
    "data copied to": lambda m: m.weight.data.copy_(torch.ones(6, 4, 3, 3)),
    "data in place": lambda m: m.weight.data.add_(1),
    "numpy": lambda m: np.negative(w := m.weight.detach().numpy(), out=w),
    "data turned": lambda m: setattr(m.weight, "data", m.weight.data.transpose(2, 3)),
    "data cut": lambda m: [setattr(p, "data", p.data[:5]) for p in (m.weight, m.bias)],
    "an element by numpy": lambda m: np.put(m.weight.detach().numpy(), 101, 9),
    "to and back": lambda m: m.double().float().weight.add_(1),
    "the bias": lambda m: m.bias.add_(1),
    "the data of the bias": lambda m: m.bias.data.add_(1),
    "no bias": lambda m: setattr(m, "bias", None),
    "its padding": lambda m: setattr(m, "padding", (0, 2)),
    "its stride": lambda m: setattr(m, "stride", (2, 1)),
    "swapped": lambda m: torch.utils.swap_tensors(m.weight, nn.Parameter(torch.ones(6, 4, 3, 3))),
}


@pytest.mark.parametrize("write", WRITES)
def test_no_filter_is_out_of_date(write):
    module, same = layer(), layer()
    for m, call in ((module, module), (same, functional(same))):
        for _ in range(2):
            check(m, call=call)
        before = expected(m)
        with torch.no_grad():
            WRITES[write](m)
        check(m, call=call)
        assert not torch.equal(before, expected(m))  # the change shows


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("how", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_training_in_between(optimizer, how):
    module = layer()
    optimizer = getattr(torch.optim, optimizer)(module.parameters(), lr=0.1, **how)
    for _ in range(3):
        check(module)
        module.train()
        optimizer.zero_grad()
        module(X).square().mean().backward()
        assert module.weight.grad is not None
        optimizer.step()
        module.eval()
    check(module)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 1, 0, 2), "step"])
@pytest.mark.parametrize("write", ["data in place", "numpy", "an element by numpy"])
def test_filters_of_any_order_in_memory_are_looked_at(order, write, last):
    module, x = layer(), X.to(memory_format=torch.channels_last) if last else X
    w = module.weight.detach()
    if order == "step":  # elements lie apart: such a filter is not kept
        module.weight = nn.Parameter(torch.stack([w, w], -1)[..., 0])
    else:
        module.weight = nn.Parameter(w.permute(order).contiguous().permute(*np.argsort(order).tolist()))
    assert not module.weight.is_contiguous()
    for _ in range(2):
        check(module, x)
    before = expected(module)
    if write == "an element by numpy":
        module.weight.detach().numpy()[2, 1, 1, 1] += 9
    else:
        WRITES[write](module)
    check(module, x)
    assert not torch.equal(before, expected(module))


def test_averages_that_are_swapped_in_and_out():
    module = layer()
    average = [p.detach() * 0.5 for p in module.parameters()]
    check(module)
    for _ in range(2):
        for p, a in zip(module.parameters(), average, strict=True):
            kept = p.data.clone()
            p.data.copy_(a)
            a.copy_(kept)
        check(module)


def test_copies_of_a_module_prepare_their_own():
    module = layer()
    check(module)
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    copies = [
        copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(stored, weights_only=False),
    ]  # fmt: skip
    shallow = copy.copy(module)
    for other in copies:
        assert other.__dict__[inference.ATTRIBUTE].held is None
        with torch.no_grad():
            other.weight.add_(1)
        check(other)
        check(module)
    check(shallow)
    assert list(module.state_dict()) == ["weight", "bias"]


def test_tied_weights():
    one, other = layer(), layer()
    other.weight = one.weight
    check(one), check(other)
    with torch.no_grad():
        one.weight.mul_(3)
    check(other), check(one)


def test_memory_that_is_used_again_is_not_taken_for_the_filter():
    module = layer()
    for value in range(20):  # a new parameter may get the address and the identity of the one before
        module.weight = nn.Parameter(torch.full((6, 4, 3, 3), float(value)))
        check(module)


def test_shapes_are_bounded_and_all_is_forgotten(counted):
    module = layer()
    for size in range(5, 25):
        check(module, torch.ones(1, 4, size, size))
    held = module.__dict__[inference.ATTRIBUTE].held
    assert len(held.steps) == inference.SHAPES and len(held.forms) <= inference.FORMS
    before = counted["prepared"]
    check(module, torch.ones(1, 4, 24, 24))
    assert counted["prepared"] == before
    ca.forget_plans()  # as when more was measured
    check(module, torch.ones(1, 4, 24, 24))
    assert counted["prepared"] == before + 1
    ct.forget_filters(module)
    assert inference.ATTRIBUTE not in module.__dict__
    check(module)
    ct.restore(module)
    assert inference.ATTRIBUTE not in module.__dict__


def test_memory_that_other_processes_may_write_is_read_each_time():
    module = nn.Conv2d(40, 50, 3).eval()  # of a filter that is too large to be compared as a whole
    module.weight.share_memory_()
    ct.replace(module)
    x = torch.ones(1, 40, 4, 4)
    check(module, x)
    module.weight.detach().numpy()[7, 7] = 9
    check(module, x)


def test_parameters_made_in_inference_mode():
    with torch.inference_mode():
        module = nn.Conv2d(4, 6, 3, padding=1)
        ct.replace(module)
        check(module)
        module.weight.mul_(2)
        check(module)


@pytest.mark.parametrize("by", ["module", "function"])
def test_threads_share_a_module(by):
    module, failed = layer(), []
    inputs = [torch.full((1, 4, n, n), 1.0) for n in range(5, 12)]
    answers = [expected(module, x) for x in inputs]
    call = module if by == "module" else functional(module)

    def use():
        with torch.no_grad():
            for turn in range(40):
                at = turn % len(inputs)
                if not torch.allclose(call(inputs[at]), answers[at], atol=1e-3):
                    failed.append(at)

    threads = [threading.Thread(target=use) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failed


# --- where an operator is asked for ----------------------------------------------------------


def test_functions_see_what_is_asked_for_after_calls_for_numbers_alone():
    module = layer()
    call = functional(module)
    check(module, call=call), check(module, call=call)
    y = call(X)
    assert y.requires_grad
    y.sum().backward()
    assert module.weight.grad is not None
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert call(X).dtype == torch.bfloat16
        with FlopCounterMode(display=False) as flops:
            call(X)
        assert flops.get_total_flops() == 2 * 2 * 6 * 4 * 9 * 81
        negated = torch._neg_view(X)
        torch.testing.assert_close(call(negated), expected(module, -X), rtol=1e-4, atol=1e-4)
        assert call(X.as_subclass(type("Tagged", (torch.Tensor,), {}))).__class__.__name__ == "Tagged"
        for other in (module.weight[:, :3], module.weight.double(), module.weight.to_sparse()):
            with pytest.raises((ValueError, TypeError)):
                ct.conv2d(X, other, module.bias, padding=1)
        with pytest.raises(TypeError, match=r"bias has dtype torch\.float64, but input torch\.float32"):
            ct.conv2d(X, module.weight, module.bias.double(), padding=1)
        with pytest.raises((ValueError, TypeError), match=r"stride=1\.0"):
            ct.conv2d(X, module.weight, module.bias, 1.0, 1)
        last = module.weight.to(memory_format=torch.channels_last)
        y = ct.conv2d(X, last, module.bias, padding=1)
        assert y.is_contiguous(memory_format=torch.channels_last)
    check(module, call=call)


def test_gradients_are_recorded_in_eval_too(counted):
    module = layer()
    y = module(X)
    assert y.requires_grad
    y.sum().backward()
    assert module.weight.grad is not None and counted["recorded"] == 1
    for p in module.parameters():
        p.requires_grad_(False)
    assert not module(X).requires_grad and counted["recorded"] == 1
    assert module(X.clone().requires_grad_()).requires_grad and counted["recorded"] == 2


def test_modes_transforms_and_graphs_see_the_operator(counted):
    module = layer()
    with torch.no_grad():
        check(module)
        with FlopCounterMode(display=False) as flops:
            module(X)
        assert flops.get_total_flops() == 2 * 2 * 6 * 4 * 9 * 81
        with torch.profiler.profile() as profile:
            module(X)
        assert any("convalgos" in event.key for event in profile.key_averages())
        with torch.autocast("cpu", torch.bfloat16):
            assert module(X).dtype == torch.bfloat16
        torch.testing.assert_close(
            torch.func.vmap(module)(X.unsqueeze(1)).squeeze(1), expected(module), rtol=1e-4, atol=1e-4
        )
        traced = torch.jit.trace(module, X)
        with torch.no_grad():
            module.weight.mul_(2)
        torch.testing.assert_close(traced(X), expected(module), rtol=1e-4, atol=1e-4)
        program = torch.export.export(module, (X,))
        assert any("convalgos" in str(node.target) for node in program.graph.nodes)
    tangent = torch.func.jvp(lambda x: module(x), (X,), (X,))[1]
    without = F.conv2d(X, module.weight, None, padding=1)
    torch.testing.assert_close(tangent, without, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last", [False, True])
def test_other_dtypes_and_layouts(dtype, last):
    module, x = layer().to(dtype), X.to(dtype)
    if last:
        module, x = module.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(2):
            y = module(x)
            assert y.dtype == dtype and y.is_contiguous(
                memory_format=torch.channels_last if last else torch.contiguous_format
            )
            torch.testing.assert_close(y, expected(module, x), rtol=2e-2, atol=1e-2)
            y.relu_().add_(1)  # it may be written


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_every_dimension_and_what_torch_takes_besides(kind):
    torch.manual_seed(2)
    theirs = getattr(nn, f"Conv{kind}d")(4, 6, 3, padding="same", groups=2).eval()
    ours = copy.deepcopy(theirs)
    ct.replace(ours)
    x = torch.randn(2, 8, *(9,) * kind)
    for part in (
        x[:, ::2],
        x[:, :4],
        x[0, :4],
        x[:0, :4],
        x[:, 2:6].transpose(-1, 1).contiguous().transpose(-1, 1),
    ):
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(ours(part), theirs(part), rtol=1e-4, atol=1e-4)
    with torch.no_grad(), pytest.raises(ValueError, match="input has 5 channels"):
        ours(torch.ones(1, 5, *(9,) * kind))
    with torch.no_grad(), pytest.raises(TypeError, match=r"weight has dtype torch\.float32, but input"):
        ours(x[:, :4].double())


def test_an_image_without_a_batch_and_filters_with_channels_last():
    module = layer().to(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(module(X[0]), expected(module, X[0]))
        torch.testing.assert_close(module(X), expected(module))


def test_pruned_and_parametrized_filters_are_computed_each_time():
    from torch.nn.utils import parametrizations, prune

    module = layer()
    parametrizations.weight_norm(module)
    check(module)
    with torch.no_grad():
        module.parametrizations.weight.original0.mul_(2)
    check(module)
    module = layer()
    prune.random_unstructured(module, "weight", 0.5)
    check(module)
    with torch.no_grad():
        module.weight_orig.mul_(2)
    module(X)
    check(module)
