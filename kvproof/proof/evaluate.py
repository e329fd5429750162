"""Z3 terms evaluated on many rows of plain numbers at once.

What a proof is about is a term; the same term is evaluated here, so that it can be held against
what the model does. Flags are arrays of truth values, numbers are 64-bit.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import z3
from numpy.typing import NDArray

from kvproof.proof.relation import Term

Column = NDArray[Any]


def _sum(*parts: Column) -> Column:
    return functools.reduce(operator.add, parts)


def _product(*parts: Column) -> Column:
    return functools.reduce(operator.mul, parts)


def _difference(first: Column, *others: Column) -> Column:
    return functools.reduce(operator.sub, others, first)


def _all(*parts: Column) -> Column:
    return functools.reduce(np.logical_and, parts, np.array(True))


def _any(*parts: Column) -> Column:
    return functools.reduce(np.logical_or, parts, np.array(False))


_FUNCTIONS: dict[int, Callable[..., Any]] = {
    z3.Z3_OP_TRUE: lambda: np.bool_(True),
    z3.Z3_OP_FALSE: lambda: np.bool_(False),
    z3.Z3_OP_AND: _all,
    z3.Z3_OP_OR: _any,
    z3.Z3_OP_NOT: np.logical_not,
    z3.Z3_OP_IMPLIES: lambda a, b: np.logical_or(np.logical_not(a), b),
    z3.Z3_OP_ITE: np.where,
    z3.Z3_OP_EQ: np.equal,
    z3.Z3_OP_DISTINCT: np.not_equal,
    z3.Z3_OP_LE: np.less_equal,
    z3.Z3_OP_LT: np.less,
    z3.Z3_OP_GE: np.greater_equal,
    z3.Z3_OP_GT: np.greater,
    z3.Z3_OP_ADD: _sum,
    z3.Z3_OP_SUB: _difference,
    z3.Z3_OP_UMINUS: np.negative,
    z3.Z3_OP_MUL: _product,
}


class Evaluator:
    """Values of terms for given values of their constants, each term evaluated once."""

    def __init__(self, values: Mapping[str, Column]) -> None:
        self._values = values
        self._known: dict[int, Column] = {}
        self._kept: list[Term] = []

    def __call__(self, term: Term) -> Column:
        """The value of a term; KeyError for a constant without a value."""
        identity = term.get_id()
        found = self._known.get(identity)
        if found is not None:
            return found
        children = term.children()
        if z3.is_int_value(term):
            value: Column = np.int64(term.as_long())  # type: ignore[assignment]
        else:
            declaration = term.decl()
            kind = declaration.kind()
            if kind == z3.Z3_OP_UNINTERPRETED and not children:
                value = self._values[declaration.name()]
            elif kind in _FUNCTIONS:
                value = _FUNCTIONS[kind](*map(self, children))
            else:
                raise NotImplementedError(f"no value for {declaration} (kind {kind})")
        self._known[identity] = value
        self._kept.append(term)  # an identity is given anew once its term is gone
        return value
