"""torch's face: answers and gradients, what torch does to functions, and what is refused."""

import copy
import gc
import itertools
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import convalgos.torch as ct  # noqa: E402
from convalgos.core.errors import Unsupported  # noqa: E402
from convalgos.core.plan import Plan  # noqa: E402
from convalgos.core.prepared_filter import PreparedFilter  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
FUNCTIONS = {1: (ct.conv1d, F.conv1d), 2: (ct.conv2d, F.conv2d), 3: (ct.conv3d, F.conv3d)}
CASES = [  # dimensions, x, w, arguments
    (1, (2, 4, 15), (6, 4, 3), {"padding": 2, "stride": 2}),
    (2, (2, 4, 7, 6), (6, 2, 3, 3), {"stride": (2, 1), "padding": 1, "dilation": (1, 2), "groups": 2}),
    (2, (1, 3, 8, 9), (3, 1, 3, 3), {"padding": "same", "groups": 3}),
    (2, (3, 8, 9), (4, 3, 1, 1), {}),
    (3, (1, 2, 4, 5, 4), (2, 2, 2, 3, 3), {"padding": [1, 1, 0]}),
]
cases = pytest.mark.parametrize(("ndim", "x_shape", "w_shape", "how"), CASES)


def tensors(*shapes, dtype=torch.float64, gradients=True):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, requires_grad=gradients) for shape in shapes]


@cases
def test_answers_and_gradients(ndim, x_shape, w_shape, how):
    x, w, b = tensors(x_shape, w_shape, w_shape[:1])
    ours, theirs = FUNCTIONS[ndim]
    y = theirs(x, w, b, **how)
    torch.testing.assert_close(ours(x, w, b, **how), y)
    dy = torch.randn_like(y)
    expected = torch.autograd.grad(y, (x, w, b), dy)
    torch.testing.assert_close(torch.autograd.grad(ours(x, w, b, **how), (x, w, b), dy), expected)


@cases
def test_gradients_by_differences_of_first_and_second_order(ndim, x_shape, w_shape, how):
    x, w, b = tensors(x_shape, w_shape, w_shape[:1])
    ours, _ = FUNCTIONS[ndim]
    assert torch.autograd.gradcheck(lambda *a: ours(*a, **how), (x, w, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *a: ours(*a, **how), (x, w, b), fast_mode=True)


def test_only_what_is_asked_for_is_computed():
    x, w = tensors((1, 3, 6, 6), (4, 3, 3, 3))
    ct.conv2d(x.detach(), w).sum().backward()
    assert x.grad is None and w.grad is not None
    ct.conv2d(x, w.detach()).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_modules_pad_as_theirs_do(mode):
    for cls, shape, padding in (
        (nn.Conv1d, (2, 4, 11), 2),
        (nn.Conv2d, (2, 4, 9, 8), "same"),
        (nn.Conv3d, (1, 4, 5, 6, 7), 1),
    ):
        theirs = cls(4, 6, 3, padding=padding, padding_mode=mode, groups=2, dtype=torch.float64)
        module = copy.deepcopy(theirs)
        assert ct.replace(module).left == {}
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        y, dy = theirs(x), torch.randn_like(theirs(x))
        torch.testing.assert_close(module(x), y)
        expected = torch.autograd.grad(y, (x, *theirs.parameters()), dy)
        torch.testing.assert_close(torch.autograd.grad(module(x), (x, *module.parameters()), dy), expected)
        with torch.no_grad():
            torch.testing.assert_close(module(x), y)  # on a filter that is kept prepared
        torch.testing.assert_close(torch.func.vmap(module)(x[None]), y[None])
        torch.testing.assert_close(torch.fx.symbolic_trace(nn.Sequential(module))(x), y)


@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
def test_operators_are_what_they_say(last):
    x, w, b = tensors((2, 4, 7, 6), (6, 2, 3, 3), (6,), dtype=torch.float32)
    if last:
        x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    how = ([2, 1], [1, 1, 1, 1], [1, 2], 2, last, "zero")
    y = ct.conv2d(x, w, b, (2, 1), 1, (1, 2), 2)
    assert y.stride() == F.conv2d(x, w, b, (2, 1), 1, (1, 2), 2).stride()
    dy = torch.randn_like(y).requires_grad_()
    for operator, arguments in (
        (torch.ops.convalgos.conv.default, (x, w, b, *how)),
        (torch.ops.convalgos.conv_backward_data.default, (dy, w, [7, 6], *how)),
        (torch.ops.convalgos.conv_backward_weights.default, (x, dy, [3, 3], *how)),
    ):
        found = torch.library.opcheck(operator, arguments)
        assert set(found.values()) == {"SUCCESS"}


# --- what torch does to functions ------------------------------------------------------------------


def test_compiled_in_one_graph_for_any_size():
    def loss(conv2d, transposed, x, w, b):
        return transposed(conv2d(x, w, b, padding=1, stride=2).relu(), w, None, 2, 1, 1).sin().sum()

    compiled = torch.compile(
        lambda *a: loss(ct.conv2d, ct.conv_transpose2d, *a), backend="aot_eager", fullgraph=True, dynamic=True
    )
    for shape in ((2, 4, 7, 6), (3, 4, 9, 11)):
        x, w, b = tensors(shape, (6, 4, 3, 3), (6,))
        y, expected = compiled(x, w, b), loss(F.conv2d, F.conv_transpose2d, x, w, b)
        torch.testing.assert_close(y, expected)
        found = torch.autograd.grad(y, (x, w, b))
        torch.testing.assert_close(found, torch.autograd.grad(expected, (x, w, b)))


def test_exported_and_traced():
    class Twice(torch.nn.Module):
        def forward(self, x, w):
            return ct.conv2d(ct.conv2d(x, w, padding="same").relu(), w, padding=1)

    x, w = tensors((2, 3, 6, 7), (3, 3, 3, 3), gradients=False)
    other, _ = tensors((5, 3, 9, 4), (1,), gradients=False)
    sizes = {i: torch.export.Dim(f"n{i}", min=2, max=64) for i in (0, 2, 3)}
    exported = torch.export.export(Twice(), (x, w), dynamic_shapes=(sizes, {})).module()
    with pytest.warns():  # torch.jit is on its way out
        traced = torch.jit.trace(Twice(), (x, w))
    for made in (exported, traced):
        torch.testing.assert_close(made(other, w), Twice()(other, w))


BATCHES = [dims for dims in itertools.product((None, 0, -1), repeat=3) if dims != (None,) * 3]


@pytest.mark.parametrize("in_dims", BATCHES, ids=str)
def test_mapped_over_any_of_its_arrays(in_dims):
    """torch.vmap, of the function and of its gradients of first and second order."""
    shapes = ((2, 4, 5, 4), (6, 2, 2, 3), (6,))
    arrays = [
        t if at is None else torch.stack([t, t.sin(), t.cos()], at)
        for t, at in zip(tensors(*shapes, gradients=False), in_dims, strict=True)
    ]

    def second_order(conv2d):
        def loss(x, w, b):
            return conv2d(x, w, b, (2, 1), 1, 1, 2).sin().sum()

        def norm(*a):
            return sum(g.pow(2).sum() for g in torch.func.grad(loss, (0, 1, 2))(*a))

        return lambda *a: (loss(*a), torch.func.grad(norm, (0, 1, 2))(*a))

    found, expected = (torch.vmap(second_order(f), in_dims)(*arrays) for f in (ct.conv2d, F.conv2d))
    torch.testing.assert_close(found, expected)


def test_mapped_transposed():
    x, w = tensors((2, 4, 5, 4), (3, 4, 2, 2, 3), gradients=False)

    def gradients(conv_transpose2d):
        def loss(x, w):
            return conv_transpose2d(x, w, None, 2, 1, (1, 0), 2).sin().sum()

        return torch.vmap(torch.func.grad(loss, (0, 1)), (None, 0))(x, w)

    torch.testing.assert_close(gradients(ct.conv_transpose2d), gradients(F.conv_transpose2d))


def test_gradients_forwards():
    x, w, b = arrays = tensors((1, 4, 5, 4), (4, 2, 3, 2), (4,))
    ours, theirs = ((lambda *a, f=f: f(*a, padding=1, groups=2)) for f in (ct.conv2d, F.conv2d))
    assert torch.autograd.gradcheck(
        ours, arrays, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    for at in range(3):
        found, expected = (torch.func.jacfwd(f, at)(*arrays) for f in (ours, theirs))
        torch.testing.assert_close(found, expected)
    found, expected = (
        torch.func.hessian(lambda w, f=f: f(x, w, b).sin().sum())(w.detach()) for f in (ours, theirs)
    )
    torch.testing.assert_close(found, expected)


def test_transforms_within_a_compiled_function_are_left_to_python():
    """An operator has no forward gradients: in a graph they would be zeros."""
    x, w = tensors((1, 2, 4, 4), (2, 2, 3, 3), gradients=False)

    def tangent(conv2d):
        return torch.func.jvp(lambda w: conv2d(x, w).sin(), (w,), (w,))[1]

    expected = tangent(F.conv2d)
    torch.testing.assert_close(torch.compile(lambda: tangent(ct.conv2d), backend="aot_eager")(), expected)


def test_operations_are_counted():
    x, w = tensors((2, 4, 7, 6), (6, 4, 3, 3))  # of groups torch counts too many
    counts = []
    for conv2d, transposed in ((ct.conv2d, ct.conv_transpose2d), (F.conv2d, F.conv_transpose2d)):
        with FlopCounterMode(display=False) as counter:
            y = conv2d(x, w, None, 2, 1)
            transposed(y, w, None, 2, 1, 1).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_as_functions_of_torch():
    """Proxies of torch.fx, subclasses of tensors, and tensors without data come through."""
    x, w = tensors((1, 2, 4, 4), (2, 2, 3, 3), gradients=False)
    graph = torch.fx.symbolic_trace(lambda x, w: ct.conv_transpose2d(ct.conv2d(x, w), w))
    torch.testing.assert_close(graph(x, w), F.conv_transpose2d(F.conv2d(x, w), w))

    class Tagged(torch.Tensor):
        pass

    assert type(ct.conv2d(x.as_subclass(Tagged), w)) is Tagged
    y = ct.conv2d(x.to("meta"), w.to("meta").requires_grad_())
    y.sum().backward()
    assert y.is_meta and y.shape == (1, 2, 2, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    """Operands in the dtype of the region, gradients in their own."""
    x, w, b = tensors((2, 4, 8, 8), (6, 4, 3, 3), (6,), dtype=torch.float32)
    for ours, theirs, weight in (
        (ct.conv2d, F.conv2d, w),
        (ct.conv_transpose2d, F.conv_transpose2d, w.transpose(0, 1)),
    ):
        with torch.autocast("cpu", dtype):
            y, expected = ours(x, weight, b), theirs(x, weight, b)
        assert y.dtype == dtype
        exact = theirs(*(a.to(dtype).double() for a in (x, weight, b)))  # torch may round on the way
        torch.testing.assert_close(y.double(), exact, rtol=1e-2, atol=1e-2)
        found, expected = (torch.autograd.grad(a.float().sum(), (x, w, b)) for a in (y, expected))
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=0.5)
        assert {g.dtype for g in found} == {torch.float32}
        with torch.autocast("cpu", dtype):  # which leaves float64 alone
            assert ours(x.double(), weight.double()).dtype == torch.float64
        with torch.autocast("cpu", dtype):
            assert ours(x.to(dtype), weight, b).dtype == dtype


# --- memory ----------------------------------------------------------------------------------------

ORDERS = {2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize(("groups", "channels", "taps"), [(1, 4, 3), (4, 4, 3), (1, 1, 3)])
def test_results_lie_as_torchs(ndim, groups, channels, taps):
    """y, dx and dw lie channels last where x or w does, by torch's reading of strides."""
    ours, theirs = FUNCTIONS[ndim]
    for of_x, of_w in itertools.product((torch.contiguous_format, ORDERS[ndim]), repeat=2):
        x, w = tensors(
            (2, channels, *(5,) * ndim), (4, channels // groups, *(taps,) * ndim), dtype=torch.float32
        )
        x, w = x.contiguous(memory_format=of_x), w.contiguous(memory_format=of_w)
        y, expected = ours(x, w, groups=groups), theirs(x, w, groups=groups)
        torch.testing.assert_close(y, expected, check_stride=True)
        dy = torch.ones(()).expand(y.shape)
        found, expected = (torch.autograd.grad(a, (x, w), dy) for a in (y, expected))
        torch.testing.assert_close(found, expected, check_stride=True, rtol=1e-4, atol=1e-4)


def test_views_of_all_kinds():
    x, w = tensors((2, 6, 9, 8), (3, 3, 4, 4), gradients=False)
    last = x.contiguous(memory_format=torch.channels_last)
    for a, b in (
        (x.transpose(2, 3)[:, ::2, 1:], w.transpose(0, 1)[..., ::2]),
        (x[:1, :3].expand(4, 3, 9, 8), w[:, :, :1, :1].expand(3, 3, 2, 3)),
        (last[:, :3], w),
        (last[:, :3, ::2], w),
        (x[:0, :3], w),
        (x[0, :3], w),
        (torch.view_as_complex(x.unflatten(3, (4, 2))[:, :3]).conj().imag, w),
    ):
        y = F.conv2d(a, b, padding=2)
        torch.testing.assert_close(ct.conv2d(a, b, padding=2), y)
        assert ct.conv2d(a, b, padding=2).stride() == y.stride() or not y.numel()


@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
def test_results_may_be_changed_in_place(last):
    """As nn.ReLU(inplace=True) does; what a gradient needs may not."""
    x, w = tensors((1, 3, 6, 6), (4, 3, 3, 3))
    x = x.detach().contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    found, expected = (torch.autograd.grad(f(x, w).relu_().sum(), w) for f in (ct.conv2d, F.conv2d))
    torch.testing.assert_close(found, expected)
    up = ct.conv_transpose2d(x, w.transpose(0, 1)).relu_().sum()
    torch.testing.assert_close(up, F.conv_transpose2d(x, w.transpose(0, 1)).relu().sum())
    y = ct.conv2d(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
def test_operators_are_left_out_where_autograd_alone_asks(last):
    """Their gradients are the same, of the second order too, and a profiler sees operators still."""
    x, w = tensors((2, 4, 7, 6), (6, 2, 3, 3))
    b = torch.randn(6, dtype=x.dtype, requires_grad=True)
    x = x.detach().contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    x.requires_grad_()
    found, expected = [], []
    for f, results in ((ct.conv2d, found), (F.conv2d, expected)):
        y = f(x, w, b, stride=(2, 1), padding=(1, 2), groups=2)
        first = torch.autograd.grad(y.pow(2).sum(), (x, w, b), create_graph=True)
        results += [y, *first, *torch.autograd.grad(sum(g.pow(2).sum() for g in first), (x, w, b))]
        assert f is F.conv2d or y.grad_fn.name() == "RecordedCallBackward"
        assert y.is_contiguous(memory_format=torch.channels_last) is last
    torch.testing.assert_close(found, expected)
    with torch.profiler.profile() as profile:
        ct.conv2d(x, w, b, groups=2).sum().backward()
    assert {"convalgos::conv", "convalgos::conv_backward_data"} <= {e.key for e in profile.key_averages()}


@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize("kernel, dtype", [(3, torch.float32), (1, torch.float64), (2, torch.bfloat16)])
def test_steps_go_by_the_filters_of_their_time(last, kernel, dtype):
    """Filters change in place between steps, and gradients of y come as they are, also without memory."""
    memory = torch.channels_last if last else torch.contiguous_format
    layer = nn.Conv2d(4, 6, kernel, stride=2, padding=1, groups=2, dtype=dtype).to(memory_format=memory)
    ours = copy.deepcopy(layer)
    ct.replace(ours)
    x = torch.randn(3, 4, 7, 5, dtype=dtype).contiguous(memory_format=memory).requires_grad_()
    limits = {"rtol": 0.1, "atol": 0.2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    for step in range(3):
        found = []
        for module in (ours, layer):
            y = module(x)
            ask = (x, *module.parameters()) if step else tuple(module.parameters())
            dys = torch.ones((), dtype=dtype).expand(y.shape), torch.linspace(-1, 1, 6, dtype=dtype)
            dy = dys[0] if step < 2 else dys[1].reshape(1, 6, 1, 1).expand(y.shape)
            found.append((y, *torch.autograd.grad(y, ask, dy)))
            with torch.no_grad():
                module.weight.add_(0.5)
        torch.testing.assert_close(*found, **limits)


def test_no_copies_where_none_are_needed(monkeypatch):
    """Arrays that lie well are read where they are, and results are written where they stay."""
    seen, call, prepare = {}, Plan.__call__, Plan.prepare

    def watched(plan, x, w, **others):
        made = call(plan, x, w, **others)
        read = [x] if isinstance(w, PreparedFilter) else [x, w]
        seen[plan.problem.direction] = [a.ctypes.data for a in (*read, made)]
        return made

    def prepared(plan, w):
        seen.setdefault("filters", []).append(w.ctypes.data)
        return prepare(plan, w)

    monkeypatch.setattr(Plan, "__call__", watched)
    monkeypatch.setattr(Plan, "prepare", prepared)
    for order in (torch.contiguous_format, torch.channels_last):
        x, w = tensors((2, 4, 6, 6), (3, 4, 3, 3))
        x = x.detach().contiguous(memory_format=order).requires_grad_()
        y = ct.conv2d(x, w, padding=1)
        dy = torch.randn(y.shape).double().contiguous(memory_format=order)
        dx, dw = torch.autograd.grad(y, (x, w), dy)
        assert seen == {
            "filters": [w.data_ptr()] * 2,
            "forward": [x.data_ptr(), y.data_ptr()],
            "backward_data": [dy.data_ptr(), dx.data_ptr()],
            "backward_weights": [x.data_ptr(), dy.data_ptr(), dw.data_ptr()],
        }
        seen.clear()


def test_nothing_is_kept():
    """Hundreds of steps leave no tensors behind, nor other objects."""
    x, w, b = tensors((1, 2, 5, 5), (2, 2, 3, 3), (2,))
    results = []
    for step in range(400):
        y = ct.conv2d(x, w, b)
        y.sum().backward()
        if step % 100 == 0:
            tangent = torch.func.jvp(lambda x: ct.conv2d(x, w), (x,), (x,))[1]
            results += weakref.ref(y), weakref.ref(tangent)
        if step == 100:
            gc.collect()
            before = len(gc.get_objects())
    del y, tangent
    gc.collect()
    assert not any(result() is not None for result in results)
    assert len(gc.get_objects()) < before + 100


def test_the_same_bits_each_time():
    x, w, b = tensors((4, 8, 12, 12), (16, 8, 3, 3), (16,), dtype=torch.float32)
    runs = []
    for _ in range(3):
        y = ct.conv2d(x, w, b, padding=1)
        runs.append((y, *torch.autograd.grad(y.sin().sum(), (x, w, b))))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_without_gradients():
    x, w = tensors((1, 3, 6, 6), (4, 3, 3, 3))
    with torch.no_grad():
        assert not ct.conv2d(x, w).requires_grad
    with torch.inference_mode():
        y = ct.conv2d(x, w)
    assert y.is_inference()
    torch.testing.assert_close(y.clone(), F.conv2d(x, w).detach())


# --- transposed, and what is refused ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "how"),
    [
        ((2, 4, 5, 6), (4, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((1, 4, 9), (4, 2, 4), {"stride": 3, "groups": 2, "dilation": 2}),
        ((4, 3, 4, 3), (4, 2, 2, 2, 2), {}),
        ((2, 4, 5), (4, 2, 3), {"dilation": 3, "padding": 1, "output_padding": 2}),
        ((1, 2, 4, 4), (2, 3, 2, 2), {"stride": (1, 3), "dilation": 2, "output_padding": 1}),
    ],
)
def test_transposed(x_shape, w_shape, how):
    ndim = len(w_shape) - 2
    x, w, b = tensors(x_shape, w_shape, (w_shape[1] * how.get("groups", 1),))
    theirs = getattr(F, f"conv_transpose{ndim}d")
    y = theirs(x, w, b, **how)
    torch.testing.assert_close(ct.conv_transpose(x, w, b, **how), y)
    dy = torch.randn_like(y)
    expected = torch.autograd.grad(y, (x, w, b), dy)
    torch.testing.assert_close(
        torch.autograd.grad(ct.conv_transpose(x, w, b, **how), (x, w, b), dy), expected
    )


def test_what_is_wrong_is_said():
    x, w = tensors((1, 3, 6, 6), (4, 3, 3, 3))
    sparse = x.detach().to_sparse()
    for call, kind, words in (
        (lambda: ct.conv2d(x[0, 0], w), ValueError, "input has 2 dimensions"),
        (lambda: ct.conv_transpose1d(x, w), ValueError, "a 1-D convolution takes 2 or 3"),
        (lambda: ct.conv2d(x, w, padding="same", stride=2), ValueError, "stride of 1"),
        (lambda: ct.conv2d(x, w, padding="full"), ValueError, "padding='full'"),
        (lambda: ct.conv_transpose2d(x, w[:3], padding="same"), ValueError, "padding='same'"),
        (lambda: ct.conv2d(x, w, stride=(1, 2, 3)), ValueError, "stride="),
        (lambda: ct.conv2d(x, w, stride=1.5), ValueError, "stride=1.5"),
        (lambda: ct.conv2d(x, w, groups=0), ValueError, "groups=0"),
        (lambda: ct.conv2d(x[:, :2], w), ValueError, "input has 2 channels"),
        (lambda: ct.conv2d(torch.cat([x, x, x], 1), w, groups=3), ValueError, "groups=3 must divide the 4"),
        (lambda: ct.conv2d(x, w, w[:3, 0, 0, 0]), ValueError, r"bias has shape \(3,\)"),
        (lambda: ct.conv2d(x[..., :2], w), ValueError, r"which spans \(3, 3\)"),
        (lambda: ct.conv_transpose2d(x, w), ValueError, "input has 3 channels"),
        (lambda: ct.conv_transpose2d(x, w[:3], output_padding=1), ValueError, r"output_padding=\[1, 1\]"),
        (lambda: ct.conv2d(x.to("meta"), w), ValueError, "weight lies on cpu"),
        (lambda: ct.conv2d(x.float(), w), TypeError, "weight has dtype torch.float64"),
        (lambda: ct.conv2d(x, w, w.float()[:, 0, 0, 0]), TypeError, "bias has dtype torch.float32"),
        (lambda: ct.conv2d(x.cfloat(), w.cfloat()), TypeError, "complex64"),
        (lambda: ct.conv2d(x.int(), w.int()), TypeError, "int32"),
        (lambda: ct.conv2d(x.detach().numpy(), w), TypeError, "input=ndarray must be a tensor"),
        (lambda: ct.conv2d(None, w), TypeError, "input=NoneType"),
        (lambda: ct.conv2d(sparse, w), TypeError, "layout torch.sparse_coo"),
        (lambda: torch.jit.trace(ct.conv_transpose2d, (x, w[:3])), Unsupported, "torch.export"),
    ):
        with pytest.raises(kind, match=words):
            call()
