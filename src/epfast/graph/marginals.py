"""Beliefs about variables other than scalar Gaussians: changes, and partition functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast.families import FAMILIES, POSSIBLE, Categorical, Family
from epfast.graph.variables import Index
from epfast.inference.loop import change

#: the change of a belief that was improper before, in standard deviations
APPEARED = 1e8


class Group(NamedTuple):
    """Variables of one family with the same number of natural parameters."""

    family: type[Family]
    #: (n,), their numbers
    variables: Index
    #: (n, k), places of the natural parameters
    at: Index

    def proper(self, beliefs: Array) -> tuple[NDArray[np.bool_], Array]:
        """Which beliefs are proper, and the natural parameters of these."""
        eta = beliefs[self.at]
        proper = self.family.is_proper(eta)
        return proper, eta[proper]

    def partition(self, beliefs: Array) -> float:
        """The sum of the log partition functions of proper beliefs."""
        with np.errstate(all="ignore"):  # what overflows ends the fit
            return float(self.family.log_partition(self.proper(beliefs)[1]).sum())

    def change(self, before: Array, after: Array) -> float:
        """The largest change of a mean, in standard deviations, or of a log standard deviation.

        For categorical variables that of a probability.
        """
        was, _ = self.proper(before)
        proper, _ = self.proper(after)
        appeared = APPEARED if (proper & ~was).any() else 0.0
        if not (was & proper).any():
            return appeared
        at, family = self.at[was & proper], self.family
        pair = before[at], after[at]
        with np.errstate(all="ignore"):
            mean = list(map(family.mean, pair))
            if family is Categorical:
                most = np.abs(mean[1] - mean[0]).max()
            else:
                most = change(*zip(mean, map(family.variance, pair), strict=True))
        return float(np.maximum(appeared, most))


class Others(NamedTuple):
    """All variables other than scalar Gaussians, by family and size."""

    groups: tuple[Group, ...]

    @classmethod
    def of(cls, families: NDArray[np.int8], sizes: Index, at: Index, first: int = 1) -> Others:
        """From the arrays of :class:`epfast.graph.model.GraphModel`.

        first: number of the first family. 0: scalar Gaussians are included.
        """
        groups = []
        for number, family in list(enumerate(FAMILIES.values()))[first:]:
            for k in np.unique(sizes[families == number]):
                which = np.flatnonzero((families == number) & (sizes == k))
                groups.append(Group(family, which, at[which, None] + np.arange(k)))
        return cls(tuple(groups))

    def partition(self, beliefs: Array) -> float:
        return sum(group.partition(beliefs) for group in self.groups)

    def prior_partition(self, prior: Array) -> float:
        """The same of priors, without categorical variables, whose priors are not normalised."""
        return sum(
            group.partition(prior) for group in self.groups if group.family is not Categorical
        )

    def excludes_all(self, beliefs: Array) -> bool:
        """Whether some variable has no possible category."""
        return any(
            bool((beliefs[group.at].max(axis=1) < POSSIBLE).any())
            for group in self.groups
            if group.family is Categorical
        )

    def of_categories(self, length: int) -> NDArray[np.bool_]:
        """Which of ``length`` natural parameters are those of categorical variables."""
        mask = np.zeros(length, dtype=bool)
        for group in self.groups:
            mask[group.at] = group.family is Categorical
        return mask

    def change(self, before: Array, after: Array) -> float:
        """The largest change of all groups. NaN if one overflows."""
        return float(np.max([group.change(before, after) for group in self.groups], initial=0.0))

    def improper(self, prior: Array, beliefs: Array) -> NDArray[np.bool_]:
        """Which natural parameters are of improper beliefs. Flat priors may be unchanged."""
        mask = np.zeros(len(beliefs), dtype=bool)
        for group in self.groups:
            proper, had = group.proper(beliefs)[0], group.proper(prior)[0]
            untouched = (beliefs[group.at] == prior[group.at]).all(axis=1)
            mask[group.at[~proper & (had | ~untouched)]] = True
        return mask
