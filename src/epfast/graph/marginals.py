"""Beliefs about variables other than scalar Gaussians: how far they moved, and their evidence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast.families import FAMILIES, POSSIBLE, Categorical, Family
from epfast.graph.variables import Index

#: how far what had no distribution before has moved, in standard deviations
APPEARED = 1e8


class Group(NamedTuple):
    """Variables of a family with as many natural parameters each."""

    family: type[Family]
    #: (n, k), where those are
    at: Index

    def proper(self, beliefs: Array) -> tuple[NDArray[np.bool_], Array]:
        """Which are proper, and the natural parameters of those."""
        eta = beliefs[self.at]
        proper = self.family.is_proper(eta)
        return proper, eta[proper]

    def partition(self, beliefs: Array) -> float:
        """The sum of the log partition functions; what has no distribution counts 0."""
        with np.errstate(all="ignore"):  # what overflows ends the fit
            return float(self.family.log_partition(self.proper(beliefs)[1]).sum())

    def change(self, before: Array, after: Array) -> float:
        """The largest move of a mean, in standard deviations, or of the log of one.

        Of categories, of a probability.
        """
        was, _ = self.proper(before)
        proper, _ = self.proper(after)
        both = was & proper
        old, new = before[self.at[both]], after[self.at[both]]
        appeared = APPEARED if (proper & ~was).any() else 0.0
        if not len(new):
            return appeared
        with np.errstate(all="ignore"):
            mean = [self.family.mean(eta) for eta in (old, new)]
            if self.family is Categorical:
                return max(appeared, float(np.abs(mean[1] - mean[0]).max()))
            variance = [self.family.variance(eta) for eta in (old, new)]
            step = np.abs(mean[1] - mean[0]) / np.sqrt(variance[1])
            grown = 0.5 * np.abs(np.log(variance[1] / variance[0]))
        most = float(np.maximum(step, grown).max())
        return max(appeared, most) if most == most else most


class Others(NamedTuple):
    """All variables that are no scalar Gaussians."""

    groups: tuple[Group, ...]

    @classmethod
    def of(cls, families: NDArray[np.int8], sizes: Index, at: Index) -> Others:
        """Those of a graph: see :class:`epfast.graph.problem.GraphProblem`."""
        groups = []
        for number, family in enumerate(FAMILIES.values()):
            for k in np.unique(sizes[families == number]) if number else ():
                which = np.flatnonzero((families == number) & (sizes == k))
                groups.append(Group(family, at[which, None] + np.arange(k)))
        return cls(tuple(groups))

    def partition(self, beliefs: Array) -> float:
        return sum(group.partition(beliefs) for group in self.groups)

    def prior_partition(self, prior: Array) -> float:
        """The same of priors, but for categories: the weights of those are as they stand."""
        return sum(
            group.partition(prior) for group in self.groups if group.family is not Categorical
        )

    def excludes_all(self, beliefs: Array) -> bool:
        """Whether no category of some variable is possible."""
        return any(
            bool((beliefs[group.at].max(axis=1) < POSSIBLE).any())
            for group in self.groups
            if group.family is Categorical
        )

    def of_categories(self, length: int) -> NDArray[np.bool_]:
        """Which of so many natural parameters are those of categories."""
        found = np.zeros(length, dtype=bool)
        for group in self.groups:
            found[group.at] = group.family is Categorical
        return found

    def change(self, before: Array, after: Array) -> float:
        """NaN where one overflows."""
        return float(np.max([group.change(before, after) for group in self.groups], initial=0.0))

    def stay_proper(self, prior: Array, beliefs: Array) -> bool:
        """Whether every variable has a proper belief, or its prior still, where that is flat."""
        for group in self.groups:
            proper, had = group.proper(beliefs)[0], group.proper(prior)[0]
            untouched = (beliefs[group.at] == prior[group.at]).all(axis=1)
            if not (proper | (~had & untouched)).all():
                return False
        return True
