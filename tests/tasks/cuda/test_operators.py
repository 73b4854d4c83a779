"""CUDA operators give torch's results, whatever members are computed together."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytestmark = pytest.mark.cuda
SHAPES = [(1, 1, 1), (3, 5, 7), (8, 4, 64), (70, 33, 65), (256, 64, 64), (16, 300, 2)]  # rows, inner, columns


@pytest.fixture(autouse=True)
def _replaced() -> None:
    from rekindle.tasks.cuda.loading import use_batch_invariant_operators

    use_batch_invariant_operators()


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to("cuda", dtype)


def near(result: Tensor, wanted: Tensor) -> bool:
    """Whether float32 results are the float64 ones of the processor, but for rounding."""
    return torch.allclose(result.cpu().double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_torchs(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    a, b, bias = numbers(3, rows, inner), numbers(3, inner, columns), numbers(3, 1, columns)
    wide = [x.cpu().double() for x in (a, b, bias)]
    assert near(torch.bmm(a, b), torch.bmm(*wide[:2]))
    assert near(torch.baddbmm(bias, a, b), torch.baddbmm(wide[2], *wide[:2]))
    assert near(torch.bmm(b.transpose(1, 2), a.transpose(1, 2)), torch.bmm(*wide[:2]).transpose(1, 2))
    out = torch.full((3, columns, rows), torch.nan, device="cuda").transpose(1, 2)
    assert near(torch.bmm(a, b, out=out), torch.bmm(*wide[:2]))
    total = numbers(3, rows, columns)
    wanted = torch.baddbmm(total.cpu().double(), *wide[:2], beta=0.5, alpha=2)
    assert near(total.baddbmm_(a, b, beta=0.5, alpha=2), wanted)


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 2), (1, 2), None])
@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 1000, 2), (3, 20_000, 1), (1, 1, 1)])
def test_sums_are_torchs(shape: tuple[int, ...], dims: tuple[int, ...] | None) -> None:
    x = numbers(*shape)
    wide = x.cpu().double()
    for keep in (False, True):
        sums = (x.sum(), wide.sum()) if dims is None else (x.sum(dims, keep), wide.sum(dims, keep))
        means = (x.mean(), wide.mean()) if dims is None else (x.mean(dims, keep), wide.mean(dims, keep))
        for result, wanted in (sums, means):
            assert result.shape == wanted.shape
            assert torch.allclose(result.cpu().double(), wanted, rtol=1e-4, atol=1e-3)


def test_integers_are_counted_exactly() -> None:
    mask = numbers(4, 5000) > 0
    assert mask.sum(1).tolist() == mask.cpu().sum(1).tolist()
    assert mask.sum(1).dtype is torch.int64
    assert (mask * 2**40).sum().item() == int(mask.cpu().sum()) * 2**40


@pytest.mark.parametrize(
    "computed",
    [
        lambda x: torch.bmm(x, x.transpose(1, 2)),
        lambda x: torch.baddbmm(x[:, :1, :4], x, x.transpose(1, 2)[:, :, :4]),
        lambda x: x.sum(1),
        lambda x: x.mean(2),
        lambda x: x.flatten(1).sum(1),
        lambda x: x.flatten(1).square().mean(1),
    ],
)
@pytest.mark.parametrize("size", [(33, 17), (256, 64), (4, 4)])
def test_a_member_alone_has_the_bits_it_has_among_many(
    computed: Callable[[Tensor], Tensor], size: tuple[int, int]
) -> None:
    x = numbers(65, *size)
    together = computed(x)
    for member in (0, 31, 64):
        assert torch.equal(computed(x[member : member + 1].clone())[0], together[member])


def test_gradients_come_from_the_same_operators() -> None:
    a, b, bias = (numbers(2, *shape, dtype=torch.float64) for shape in ((5, 3), (3, 4), (1, 4)))
    given = tuple(x.requires_grad_() for x in (a, b, bias))
    assert torch.autograd.gradcheck(lambda a, b, bias: torch.baddbmm(bias, a, b).sum(1).mean(1), given)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 0)])
def test_the_gradient_of_maxima_is_torchs_and_always_the_same(kernel: int, stride: int, padding: int) -> None:
    x = numbers(4, 3, 9, 10).requires_grad_()
    y = functional.max_pool2d(x, kernel, stride, padding)
    g = torch.randn_like(y)
    wide = x.detach().cpu().requires_grad_()
    (wanted,) = torch.autograd.grad(functional.max_pool2d(wide, kernel, stride, padding), wide, g.cpu())
    result = [torch.autograd.grad(y, x, g, retain_graph=True)[0] for _ in range(3)]
    assert torch.allclose(result[0].cpu(), wanted, atol=1e-6)
    assert torch.equal(result[0], result[1])
    assert torch.equal(result[0], result[2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_other_types_are_torchs_too(dtype: torch.dtype) -> None:
    a, b, bias = (numbers(2, *shape).to(dtype) for shape in ((3, 4), (4, 5), (3, 5)))
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype in (torch.float16, torch.bfloat16) else {"rtol": 1e-6, "atol": 1e-6}
    wide = [x.cpu() for x in (a, b, bias)]
    pairs = [
        (torch.bmm(a, b), torch.bmm(*wide[:2])),
        (torch.baddbmm(bias, a, b, beta=0.3, alpha=0.7), torch.baddbmm(wide[2], *wide[:2], beta=0.3, alpha=0.7)),
        (a.sum(1), wide[0].sum(1)),
        (a.mean((0, 2), True), wide[0].mean((0, 2), True)),
    ]
    for result, wanted in pairs:
        assert result.dtype is dtype
        assert torch.allclose(result.cpu(), wanted, **near)


def test_sums_are_taken_in_the_type_of_the_result() -> None:
    x = torch.tensor([1.5, 1.5], device="cuda")
    assert torch.sum(x, 0, out=torch.empty((), dtype=torch.int64, device="cuda")).item() == 2
    assert torch.full((20_000,), 10.0, dtype=torch.float16, device="cuda").mean().item() == 10
    third = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64, device="cuda").mean().item()
    assert third == pytest.approx(0.7 / 3, rel=1e-15)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.sum(3),
        lambda x: x.sum((1, -2)),
        lambda x: torch.bmm(x, x),
        lambda x: torch.bmm(x.half(), x.transpose(1, 2)),
        lambda x: torch.bmm(x[0], x[0].T),
        lambda x: x.long().mean(),
        lambda x: x[:, :, :1].clone().baddbmm_(x, x.transpose(1, 2)),
    ],
)
def test_arguments_that_torch_refuses_are_refused(wrong: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        wrong(numbers(2, 3, 4))


def test_a_task_of_one_member_has_the_bits_it_has_after_cohorts() -> None:
    train = """if True:
    import sys
    from rekindle.tasks.examples.digits import Digits
    if sys.argv[1] == "after":
        from rekindle.tasks.cuda.loading import use_batch_invariant_operators
        use_batch_invariant_operators()
    task = Digits(seed=0, device="cuda").init(width=16, batch_size=128)
    task.fit(2)
    print(task.digest)
    """
    digests = {
        subprocess.run([sys.executable, "-c", train, when], check=True, capture_output=True, text=True).stdout
        for when in ("alone", "after")
    }
    assert len(digests) == 1
