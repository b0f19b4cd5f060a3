"""In which order a function adds products, found out by asking it.

A sum of 1, M and -M, with M so large that 1 + M is M, has lost every 1 that was added between M and
-M. So how many are left tells how many terms were added up before those two met. Asked for enough
pairs, that is the whole tree of additions (FPRev, Xie et al., 2024). A tree is written down as
steps that a kernel can go through for any number of rows: see `SumOrder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from vllm.fork_kernels.torch_order.ordered_products import Step

Pairs = torch.Tensor
"""int64 [n, 2], two terms of a sum in each row, the first before the second."""

CountsOf = Callable[[Pairs], torch.Tensor]
"""Returns int64 [n]: for each pair of terms, of how many the smallest sum is that has both."""

AreFused = Callable[[Pairs], torch.Tensor]
"""Returns bool [n]: whether the first product of each pair is added to the second unrounded."""

MOST_ROUNDS = 24
"""How deep sums within sums are looked for. Lanes that are folded by halves have up to eight."""

Tree = int | list["Tree"]
"""A term, or what is added one after the other to the first."""


class NotFound(Exception):
    """The order has more sums within sums than are looked for."""


def tree_of(num_terms: int, counts: CountsOf) -> Tree:
    """Return the tree of a sum.

    Args:
        num_terms: of it.
        counts: asks.

    Raises:
        NotFound: it has too many sums within sums.
    """
    root: list[Tree] = [0]
    waiting = [(root, torch.arange(num_terms))]
    for _ in range(MOST_ROUNDS):
        waiting = list(_taken_apart(waiting, counts))
        if not waiting:
            return root
    raise NotFound


def _taken_apart(
    sums: list[tuple[list[Tree], torch.Tensor]], counts: CountsOf
) -> Iterator[tuple[list[Tree], torch.Tensor]]:
    """Find out what is added to the first term of each sum, one after the other, and yield what
    are sums themselves.

    Args:
        sums: lists to be written, and the terms that belong to each.
        counts: asks, about all of them at once.
    """
    pairs = [torch.stack([terms[:1].expand(len(terms) - 1), terms[1:]], 1) for _, terms in sums]
    found = counts(torch.cat(pairs)).split([len(one) for one in pairs])
    for (summands, terms), sizes in zip(sums, found, strict=True):
        summands[:] = [int(terms[0])]
        order = sizes.argsort(stable=True)
        _, lengths = sizes[order].unique_consecutive(return_counts=True)
        for group in terms[1:][order].split(lengths.tolist()):
            if len(group) == 1:
                summands.append(int(group[0]))
                continue
            own: list[Tree] = []
            summands.append(own)
            yield own, group


def steps_of(tree: Tree, bias: int, are_fused: AreFused) -> list[Step]:
    """Return how to go through a tree: sums are numbered by how deep they lie in others.

    Args:
        tree: of products, and perhaps a bias.
        bias: the term that it is.
        are_fused: asks.
    """
    asked = list(_beside(tree))
    answers = are_fused(torch.tensor(asked, dtype=torch.int64).view(-1, 2)).tolist()
    fused = {term for (term, _), is_fused in zip(asked, answers, strict=True) if is_fused}
    steps: list[Step] = []

    def add_up(tree: Tree, own: int) -> None:
        summands: list[Tree] = [tree] if isinstance(tree, int) else [*tree]
        if summands[0] in fused:  # it is added to what comes after it
            summands[:2] = summands[1::-1]
            if isinstance(summands[0], list):
                add_up(summands.pop(0), own)
        for summand in summands:
            if summand == bias:
                steps.append(Step(own, 0, 0, -1))
            elif isinstance(summand, int):
                _add_term(steps, Step(own, summand, 1, 1, summand in fused))
            else:
                add_up(summand, own + 1)
                steps.append(Step(own, own + 1, 0, 0))

    add_up(tree, 0)
    return steps


def _beside(tree: Tree) -> Iterator[tuple[int, int]]:
    """Yield each term that is added to others, with one of those."""
    if isinstance(tree, int):
        return
    for summand in tree[1:]:
        if isinstance(summand, int):
            yield summand, _first(tree)
        yield from _beside(summand)
    if len(tree) > 1:
        yield _first(tree), _first(tree[1])


def _first(tree: Tree) -> int:
    while not isinstance(tree, int):
        tree = tree[0]
    return tree


def _add_term(steps: list[Step], step: Step) -> None:
    """Write down that a product is added to a sum: the step before goes on, if it can.

    What a sum begins with is as good as fused or not.
    """
    last = steps[-1] if steps else Step(-1, 0, 0, 0)
    gap = step.first - last.first - last.stride * (last.num_products - 1)
    if last.sum != step.sum or last.num_products < 1 or gap < 1:
        steps.append(step)
    elif last.num_products == 1 and (_is_beginning(steps) or last.is_fused == step.is_fused):
        steps[-1] = Step(step.sum, last.first, gap, 2, step.is_fused)
    elif gap == last.stride and last.is_fused == step.is_fused:
        steps[-1] = last._replace(num_products=last.num_products + 1)
    else:
        steps.append(step)


def _is_beginning(steps: list[Step]) -> bool:
    """Whether the last step adds to a sum that nothing was added to."""
    own = steps[-1].sum
    for step in reversed(steps[:-1]):
        if step.sum == own:
            return False
        if step.num_products == 0 and step.first == own:
            return True
    return True
