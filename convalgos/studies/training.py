"""Where the time of a training step goes: its six stages, its layers by library, and its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from convalgos.core.errors import missing
from convalgos.select import devices
from convalgos.select.measure.backends import Call, backend
from convalgos.select.measure.timing import interleave
from convalgos.studies.network_training import answers
from convalgos.studies.network_training.layer_efficiency import LayerUse, measure_layer
from convalgos.studies.network_training.words import ALGORITHMS, CUDNN, OURS, TORCH, StageSeconds
from convalgos.studies.study import Answer, NotRun, Study, StudySetting
from convalgos.tools.bench.suites import Layer, suite

if TYPE_CHECKING:
    from convalgos.studies.network_training.networks import TrainedNetwork
    from convalgos.studies.network_training.stages import Training

ROUNDS = 3  # of steps, and of the passes of a layer
MOST_FLOPS = 3e10  # of a layer's forward pass: larger batches are left out
OF_STAGES, OF_LAYERS = 0.45, 0.9  # of the seconds of the study, after which no more are begun
GPU_NEEDS = "a GPU with CuPy and cuDNN (pip install 'convalgos[gpu]')"


class TrainingStudy(Study):
    name: ClassVar[str] = "training"
    question: ClassVar[str] = (
        "Where does the time of a training step go, and how well does each library use the machine?"
    )
    source: ClassVar[str] = (
        "A six-stage analysis of the training phase of convolutional networks on GPUs: the latency of each "
        "stage by data flow, and layer by layer compute efficiency, utilisation and memory by library. It "
        "found cuDNN's convolution at twice the efficiency of im2col with cuBLAS."
    )
    method: ClassVar[str] = (
        "AlexNet, VGG-16, ResNet-50 and U-Net are trained in torch on random images, their convolutions by "
        "torch and by convalgos (convalgos.torch.replace) in turn, channels first and last; each stage is "
        "timed, and of all steps the one in the middle is shown. Then single layers are timed at several "
        "batch sizes: forward, and both gradients, filters prepared in each call. Efficiency is the flops of "
        "the direct convolution per second over the machine's peak, so that Winograd can exceed 100 %; "
        "utilisation the share of the cores' time in which they ran (threads that wait by spinning count). "
        "Memory is counted from the shapes."
    )
    look_at: ClassVar[str] = (
        "Which stage a faster convolution leaves; which layers stay below the peak, and whether larger "
        "batches mend it; what fills the memory: weights in dense layers, maps in deep networks."
    )

    batches: ClassVar[tuple[int, ...]] = (1, 4, 16)
    quick_batches: ClassVar[tuple[int, ...]] = (1, 4)
    layers: ClassVar[Mapping[str, tuple[str, ...]]] = {  # suite -> names
        "alexnet": ("conv1", "conv2", "conv3"),
        "vgg16": ("conv1_2", "conv3_2", "conv5_1"),
        "resnet50": ("conv1", "res2_3x3", "res3_1x1_expand", "res4_3x3", "res5_3x3"),
        "unet": ("enc1_2", "bottleneck_2"),
    }

    def networks(self) -> tuple[TrainedNetwork, ...]:
        from convalgos.studies.network_training.networks import NETWORKS

        return NETWORKS

    def parts(self, setting: StudySetting) -> Iterator[Answer]:
        if reason := missing("torch"):
            yield NotRun("training steps and their memory", reason)
        else:
            yield from self._steps(setting)
            yield from self._memory(setting)
        yield from self._layers(setting)
        if setting.device == "cpu":
            yield NotRun("the copy to a device, cuDNN and cuBLAS", GPU_NEEDS)

    def _steps(self, setting: StudySetting) -> Iterator[Answer]:
        """The stages of steps of each network, by each library and layout."""
        import torch

        torch.set_num_threads(setting.threads)
        found: dict[tuple[str, str], tuple[int, StageSeconds]] = {}
        for network in self.networks():
            if setting.left() < (1 - OF_STAGES) * seconds_allowed(setting):
                yield NotRun(f"steps of {network.name}", "more time than the study may take")
                continue
            setting.tell(f"steps of {network.name}")
            batch = max(1, network.batch // 4) if setting.quick else network.batch
            stages = time_steps(network, batch, setting)
            found |= {(network.name, way): (batch, seconds) for way, seconds in stages.items()}
        yield answers.stages_part(found)
        yield answers.data_flow_part(found)
        yield answers.step_finding(found)

    def _memory(self, setting: StudySetting) -> Iterator[Answer]:
        from convalgos.studies.network_training.memory import layer_memory

        device = "cpu" if setting.device == "cpu" else "cuda"
        algorithms = {library: a for library, a in ALGORITHMS[setting.device].items() if library != CUDNN}
        found = {}
        for network in self.networks():
            setting.tell(f"memory of {network.name}")
            layers = layer_memory(network, network.batch, device, algorithms.values())
            yield answers.layers_memory_part(network.name, network.batch, algorithms, layers)
            found[network.name] = network.batch, layers
        yield answers.networks_memory_part(algorithms, found)
        yield answers.memory_finding(found)

    def _layers(self, setting: StudySetting) -> Iterator[Answer]:
        """Efficiency of layers against batch sizes."""
        where = backend("cpu" if setting.device == "cpu" else "cuda")
        with where.working():
            peak = devices.measured_machine().peak("float32") if setting.device == "cpu" else gpu_peak()
        uses: dict[tuple[Layer, int], list[LayerUse]] = {}
        told: dict[str, str] = {}
        for layer in self._picked(setting):
            for batch in self.quick_batches if setting.quick else self.batches:
                p = layer.problem.replace(x_shape=(batch, *layer.problem.x_shape[1:]))
                late = setting.left() < (1 - OF_LAYERS) * seconds_allowed(setting)
                if late or (p.flops > MOST_FLOPS and batch > 1):
                    continue
                setting.tell(f"{layer.suite} {layer.name}, batch {batch}")
                rounds = 1 if setting.quick else ROUNDS
                uses[layer, batch], absent = measure_layer(
                    p, where, peak, setting.threads, rounds=rounds, deadline=setting.deadline
                )
                told |= absent
        if uses:
            yield answers.efficiency_part(uses, peak)
            yield answers.batches_part(uses)
            yield answers.efficiency_finding(uses, setting.device)
        for library, reason in told.items():
            yield NotRun(f"layers by {library}", reason)

    def _picked(self, setting: StudySetting) -> Iterator[Layer]:
        for name, wanted in self.layers.items():
            taken = wanted[:1] if setting.quick else wanted
            yield from (layer for layer in suite(name) if layer.name in taken)


def time_steps(network: TrainedNetwork, batch: int, setting: StudySetting) -> dict[str, StageSeconds]:
    """Way -> seconds of the stages of its median step; the ways take turns."""
    from convalgos.studies.network_training.stages import Training

    device = "cpu" if setting.device == "cpu" else "cuda"
    found: dict[str, StageSeconds] = {}
    for channels_last in (False,) if setting.quick else (False, True):
        training = Training(network, batch, device, channels_last=channels_last)
        calls: dict[str, Call] = {library: _step_of(training, library) for library in (TORCH, OURS)}
        for call in calls.values():
            call()  # plans, and the pages of new arrays
        interleave(calls, rounds=1 if setting.quick else ROUNDS, burst=1, deadline=setting.deadline)
        layout = "channels last" if channels_last else "channels first"
        found |= {f"{library}, {layout}": training.median_step(library) for library in calls}
    return found


def seconds_allowed(setting: StudySetting) -> float:
    """Seconds that the study may take in all."""
    return setting.deadline - setting.began


def gpu_peak() -> float:
    """flop/s of CUDA cores in float32 of the current GPU."""
    from convalgos.gpu import device as gpu

    peak: float = gpu.current().figures.peak("float32")
    return peak


def _step_of(training: Training, library: str) -> Callable[[], float]:
    return lambda: training.step(library)


STUDY = TrainingStudy()
