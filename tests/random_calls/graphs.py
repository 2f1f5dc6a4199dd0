"""Random graphs: random variables, factors of all kinds, schedules, extreme numbers.

A case is the life of one graph of up to eight variables: factors come and go, it is fitted,
resumed, saved and loaded. Each step is refused by an error that names an argument, or
leaves beliefs that are no NaN, finite evidence, and a fit that converged or says that it did not.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

import epfast
from epfast import graph, losses
from tests.random_calls import values
from tests.random_calls.oracles import OURS, RAW, Case
from tests.random_calls.values import Draw

#: variables of a graph at most, and steps of its life
MOST_VARIABLES, MOST_STEPS = 8, 7
#: numbers at the ends of what doubles hold, and some that are none
EXTREME = (0.0, 1e-300, 1e-150, 1e-30, 1e-8, 1e-3, 1e3, 1e8, 1e30, 1e150, 1e300, 5e-324, 1.7e308)
NONE = (np.nan, np.inf, -np.inf)
FAMILIES = ("gaussian", "gaussian", "gaussian", "gamma", "beta", "categorical", "dirichlet")
#: factors by the families that they need
NEEDS = {
    **dict.fromkeys(("loss", "between", "transition", "walk", "product"), "gaussian"),
    **{"noise": "gaussian gamma", "compound": "gamma", "link": "gaussian beta"},
    **{"table": "categorical", "mixture": "gaussian categorical", "own": "gaussian own"},
    **{"category": "dirichlet", "rows": "dirichlet"},
}
#: rounding of beliefs, see ``GraphProblem.added_up``
ROUNDING = 1e-6
#: change of one more sweep, in parts of the tolerance, above which a fit has not converged
FALSE = 1e3


def draw_case(draw: Draw) -> Case:
    """The case of these draws."""
    life = Life(draw)
    given = {"wild": life.wild, "story": draw.py.random()}
    case = Case("graph", lambda wild, story: life.play(), given, may_be_infinite=True)
    case.check = lambda found, caught: iter(found)
    return case


class Life:
    """A graph, and what is done to it."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.graph = epfast.Graph()
        self.arrays: list[Any] = []
        self.blocks: list[Any] = []
        self.batches: list[int] = []
        self.post: Any = None
        self.found: list[tuple[str, str]] = []
        #: how far from ordinary its numbers are
        self.wild = draw.of((0.0, 0.0, 0.05, 0.3))
        self.wrong = draw.of((0.0, 0.0, 0.1))
        #: factors of one's own take a thousand times as long
        self.own = draw.chance(0.03)

    def play(self) -> list[tuple[str, str]]:
        draw = self.draw
        for _ in range(draw.integer(1, 4)):
            self.step(self.variables)
        for _ in range(draw.integer(2, 8)):
            self.step(self.add)
        self.step(self.fit)
        others = (self.add, self.remove, self.fit, self.resume, self.stored, self.variables)
        for _ in range(draw.integer(0, MOST_STEPS)):
            self.step(draw.of(others))
        self.step(self.ahead)
        return self.found

    def step(self, what: Callable[[], None]) -> None:
        """Do it, or be refused."""
        try:
            what()
        except (ValueError, TypeError) as error:
            text = str(error)
            if RAW.search(text) or not OURS.search(text):
                self.found.append(("raw error", f"{what.__name__}: {type(error).__name__}: {text}"))
        except FloatingPointError as error:
            if "overflowed" not in str(error):
                raise

    # ---- numbers ----

    def number(self, above: bool = False) -> float:
        draw = self.draw
        if draw.chance(self.wild):
            x = draw.of(EXTREME)
        elif draw.chance(self.wrong):
            x = draw.of(NONE)
        else:
            x = draw.scale(-1.0, 1.0)
        return x if above or draw.chance(0.6) else -x

    def numbers(self, shape: Any = (), above: bool = False) -> Any:
        """One number, or an array of the shape, of an odd kind now and then."""
        draw = self.draw
        if draw.chance(0.5) or shape == ():
            return self.number(above)
        found = np.array([self.number(above) for _ in range(int(np.prod(shape)))]).reshape(shape)
        pick = draw.integer(0, 9)
        if pick == 0:
            with np.errstate(all="ignore"):
                found = found.astype(np.float32)
        elif pick == 1:
            found.setflags(write=False)
        elif pick == 2:
            found = np.repeat(found, 2, axis=-1)[..., ::2]
        elif pick == 3 and np.isfinite(found).all() and (np.abs(found) < 1e9).all():
            found = found.astype(int) + 1
        return found

    # ---- variables ----

    def variables(self) -> None:
        draw, g = self.draw, self.graph
        room = MOST_VARIABLES - sum(v.size for v in self.arrays)
        if room < 1:
            return
        size = draw.of((None, 2, 3, (1, 2), (2, 2)))
        if np.prod(size or 1) > room:
            size = None
        shape = () if size is None else size if isinstance(size, tuple) else (size,)
        family = draw.of(FAMILIES) if self.arrays else "gaussian"
        if draw.chance(0.25):
            self.blocks.append(self.block())
            return
        if family == "gaussian":
            variance = np.inf if draw.chance(0.1) else self.numbers(shape, True)
            made = g.gaussian(size, mean=self.numbers(shape), variance=variance)
        elif family == "gamma":
            if draw.chance(0.1):
                made = g.gamma(size, shape=1.0, rate=0.0)
            else:
                made = g.gamma(size, self.numbers(shape, True), self.numbers(shape, True))
        elif family == "beta":
            made = g.beta(size, self.numbers(shape, True), self.numbers(shape, True))
        elif family == "dirichlet":
            K = draw.of((2, 2, 3))
            alpha = np.array([self.number(True) for _ in range(K)])
            made = g.dirichlet(K, alpha, size)
        else:
            K = draw.of((2, 2, 3))
            p = np.array([self.number(True) for _ in range(K)])
            some = {"n": K} if draw.chance(0.4) else {"probabilities": p}
            made = g.categorical(size, **some)
        self.arrays.append(made)

    def block(self) -> Any:
        draw, d = self.draw, self.draw.integer(1, 4)
        more: dict[str, Any] = {"variance": self.numbers((d,), True)}
        if draw.chance(0.1):
            more["variance"] = 1e12
        if draw.chance(0.3):
            root = np.array([self.number() for _ in range(d * d)]).reshape(d, d)
            with np.errstate(all="ignore"):
                more = {"precision": root @ root.T + np.eye(d) * self.number(True)}
            if draw.chance(0.5):
                more["precision"] = sparse.csr_array(more["precision"])
        return self.graph.block(d, mean=self.numbers((d,)), **more)

    def over_block(self, shape: tuple[int, ...]) -> Any:
        """A form over a block, of a shape of one axis or none."""
        draw, w = self.draw, self.draw.of(self.blocks)
        if draw.chance(0.2):
            return w[draw.of((0, -1))] * self.number()
        n = shape[0] if len(shape) == 1 else draw.integer(1, 6)
        X = np.array([self.number() for _ in range(n * w.d)]).reshape(n, w.d)
        if draw.chance(0.2):
            X[draw.integer(0, n - 1)] = 0.0
        return (sparse.csr_array(X) if draw.chance(0.3) else X) @ w

    def of(self, family: str) -> Any:
        """Variables of a family; of another one now and then."""
        draw = self.draw
        fit = [v for v in self.arrays if v.family == family or draw.chance(self.wrong)]
        if not fit:
            raise ValueError(f"there are no {family} variables; allowed: some")
        found = draw.of(fit)
        if found.ndim and draw.chance(0.5):
            found = found[draw.of((0, -1, slice(None, None, 2), [0], [0, 0], slice(1, None)))]
        return found

    def form(self) -> Any:
        draw = self.draw
        if self.blocks and draw.chance(0.3):
            return self.over_block(())
        form = self.of("gaussian")
        if self.blocks and draw.chance(0.4):
            form = form + self.over_block(form.shape)
        for _ in range(draw.integer(0, 2)):
            other = self.of("gaussian")
            pick = draw.integer(0, 4)
            if pick == 0:
                form = form - other
            elif pick == 1:
                form = form + self.numbers(other.shape) * other
            elif pick == 2:
                form = form * self.number()
            elif pick == 3:
                form = form + self.numbers(form.shape)
            elif form.shape:
                form = form.sum()
        return form

    # ---- factors ----

    def add(self) -> None:
        have = {v.family for v in self.arrays} | ({"own"} if self.own else set())
        names = [
            name
            for name, families in NEEDS.items()
            if have.issuperset(families.split()) or (name != "own" and self.draw.chance(0.02))
        ]
        if names:
            self.batches.append(getattr(self, "_" + self.draw.of(names))())

    def response(self, loss: Any, shape: tuple[int, ...]) -> Any:
        draw = self.draw
        kind = values.kind_of_responses(loss) or "labels"
        y = values.RESPONSES[kind](draw.rng, int(np.prod(shape)))
        y = np.asarray(y).reshape((*shape, *np.shape(y)[1:]))
        if draw.chance(self.wild) and y.dtype.kind == "f":
            with np.errstate(all="ignore"):
                y = y * draw.of(EXTREME)
        if draw.chance(0.05):
            y = np.asarray(y)[..., None] if draw.chance(0.5) else np.empty(0)
        return y

    def loss(self) -> Any:
        draw = self.draw
        if draw.chance(0.2):
            return losses.Gaussian(self.number(True))
        name = draw.of(("probit", "logistic", draw.of(values.NAMES), draw.of(values.NAMES)))
        return name if draw.chance(0.7) else values.made(draw, losses.NAMED[name])

    def _loss(self) -> int:
        draw, form, loss = self.draw, self.form(), self.loss()
        more: dict[str, Any] = {}
        if draw.chance(0.3):
            more["noise"] = self.numbers(form.shape, not draw.chance(self.wrong))
        if draw.chance(0.15):
            more["scheme"] = values.scheme(draw)
        y = self.response(losses.resolve(loss), form.shape)
        return self.graph.add(loss, form, y, **more)

    def _between(self) -> int:
        form = self.form()
        ends = [self.numbers(form.shape), self.numbers(form.shape)]
        if self.draw.chance(0.6):
            with np.errstate(all="ignore"):
                ends = [np.minimum(*ends), np.maximum(*ends)]
        if self.draw.chance(0.3):
            ends[1] = np.inf
        noise = self.draw.of((0.0, self.numbers(form.shape, True)))
        return self.graph.add(graph.Between(*ends), form, noise=noise)

    def _transition(self) -> int:
        a, b = self.of("gaussian"), self.of("gaussian")
        kind = graph.Transition(self.numbers(a.shape, True), factor=self.numbers(a.shape))
        return self.graph.add(kind, a, b)

    def _walk(self) -> int:
        x, draw = self.of("gaussian"), self.draw
        more: dict[str, Any] = {}
        if draw.chance(0.5):
            more["by"] = np.arange(x.size) % draw.integer(1, 2)
        if draw.chance(0.6):
            more["time"] = np.abs([self.number(True) for _ in range(x.size)])
            more["time"] = np.sort(more["time"]) if draw.chance(0.8) else more["time"]
        return self.graph.add(graph.Walk(self.number(True)), x, **more)

    def _noise(self) -> int:
        kind = graph.Noise(self.of("gamma"), match=self.draw.of(("statistics", "moments")))
        form = self.form()
        return self.graph.add(
            kind, form if self.draw.chance(0.4) else self.numbers(form.shape) - form
        )

    def _product(self) -> int:
        x, y = self.of("gaussian"), self.of("gaussian")
        z = self.numbers(x.shape) if self.draw.chance(0.5) else self.of("gaussian")
        return self.graph.add(graph.Product(self.draw.of((0.0, self.numbers((), True)))), x, y, z)

    def _link(self) -> int:
        kind = graph.LogisticLink(match=self.draw.of(("statistics", "moments")))
        return self.graph.add(kind, self.of("gaussian"), self.of("beta"))

    def _compound(self) -> int:
        tau = self.of("gamma")
        numbers = [self.numbers(tau.shape, True) for _ in range(3)]
        match = self.draw.of(("statistics", "moments"))
        return self.graph.add(graph.CompoundGamma(*numbers, match=match), tau)

    def _table(self) -> int:
        h = [self.of("categorical") for _ in range(self.draw.integer(1, 2))]
        return self.graph.add(graph.Table(self.table(h)), *h)

    def _category(self) -> int:
        """A category that is chosen, observed or not."""
        draw, p = self.draw, self.of("dirichlet")
        kind = graph.Category(p, match=draw.of(("statistics", "moments")))
        return self.graph.add(kind, self.chosen(p))

    def _rows(self) -> int:
        """A table of unknown rows, as many as the last axis has."""
        draw, p = self.draw, self.of("dirichlet")
        kind = graph.Table(p, match=draw.of(("statistics", "moments")))
        n = p.shape[-1] if p.shape else 2
        x = [draw.integer(0, n - 1)] if draw.chance(0.3) else self.of("categorical")
        return self.graph.add(kind, x, self.chosen(p))

    def chosen(self, p: Any) -> Any:
        """Observed categories, or variables."""
        if self.draw.chance(0.5):
            return self.draw.integer(0, p.width - 1)
        return self.of("categorical")

    def table(self, h: list[Any]) -> Any:
        shape = tuple(v.width for v in h)
        # some of them 0: what several tables leave possible
        numbers = [self.number(True) * self.draw.chance(0.8) for _ in range(int(np.prod(shape)))]
        return np.array(numbers).reshape(shape)

    def _mixture(self) -> int:
        draw, h = self.draw, self.of("categorical")
        forms = [self.form() if draw.chance(0.8) else self.number() for _ in range(h.width)]
        loss = self.loss()
        y = self.response(losses.resolve(loss), h.shape)
        if draw.chance(0.3):
            loss = [loss] * h.width
        noise = draw.of((None, self.number(True)))
        kind = graph.Mixture(h, loss, vectors=draw.chance(0.2))
        return self.graph.add(kind, forms, y, noise=noise)

    def _own(self) -> int:
        draw = self.draw
        scheme = draw.of(("laplace", "quadrature", "quadrature", graph.ImportanceMessages(200)))
        x = self.of(draw.of(("gaussian", "gaussian", "gamma", "beta")))
        neighbours = [x, self.of("gaussian")] if draw.chance(0.4) else [x]
        log_t = draw.of(DENSITIES)
        return self.graph.add(graph.Factor(log_t, scheme=scheme), *neighbours, y=self.number())

    def remove(self) -> None:
        draw = self.draw
        if not self.batches:
            return
        key = draw.of(self.batches)
        rows = None if draw.chance(0.7) else draw.of(([0], [1], [-1], []))
        self.graph.remove(key, rows)
        if rows is None:
            self.batches.remove(key)

    # ---- fits ----

    def schedule(self) -> Any:
        draw = self.draw
        sweeps, tol = (
            draw.of((1, 2) if self.own else (1, 2, 5, 30)),
            draw.of((0.0, 1e-3, 1e-6, 1e-9)),
        )
        pick = draw.py.random()
        damping = draw.of((None, None, 1.0, 0.5, 0.1))
        power = draw.of((None, None, None, 1.0, 0.5, 2.0, 0.03, 10.0))
        if pick < 0.7:
            order = draw.of(("auto", "auto", "sequential", "parallel"))
            return epfast.EP(sweeps=sweeps, tol=tol, damping=damping, power=power, order=order)
        if pick < 0.8:
            return epfast.ADF()
        kind = draw.of((epfast.SEP, epfast.AEP))
        return kind(sweeps=sweeps, tol=tol, damping=damping, power=power)

    def fit(self, start: Any = None) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            schedule = None if self.draw.chance(0.2) and not self.own else self.schedule()
            post = self.graph.fit(schedule, start=start)
        for warning in caught:  # those of NumPy are judged
            if not issubclass(warning.category, UserWarning):
                self.found.append(("leaked warning", f"{warning.category}: {warning.message}"))
        self.post = post
        self.found += judged(post, [w for w in caught if issubclass(w.category, UserWarning)])
        if post.converged and self.draw.chance(0.3):
            self.again(post)

    def again(self, post: Any) -> None:
        """One more sweep moves nothing."""
        own = post.problem.schedule
        schedule = epfast.EP(1, 0.0, damping=own.damping, power=own.power)
        if type(own) is not epfast.EP or own.order == "parallel":
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            more = self.graph.fit(schedule, start=post)
        if more.history[-1].change > FALSE * max(own.tol, 1e-7):
            what = f"the change is {more.history[-1].change:.2g} after it was {own.tol:g}"
            self.found.append(("false convergence", what))

    def resume(self) -> None:
        if self.post is not None:
            self.fit(self.post)

    def stored(self) -> None:
        """Through a pickle or a file, and back."""
        if self.post is None:
            return
        if self.draw.chance(0.3):
            post = self.post if self.has_own() else pickle.loads(pickle.dumps(self.post))
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "post.npz")
                self.post.save(path)
                try:
                    post = epfast.load(path)
                except ValueError as error:
                    self.found.append(("not loaded", str(error).replace(folder, "")))
                    return
        for mine, theirs in zip(self.post.state.blocks, post.state.blocks, strict=True):
            if not all(map(np.array_equal, mine.summary, theirs.summary)):
                self.found.append(("not as it was saved", "a block"))
        if not all(map(np.array_equal, self.post.state.pace, post.state.pace)):
            self.found.append(("not as it was saved", "pace"))
        for name, value in self.post.state._replace(pace=())._asdict().items():
            if name not in ("blocks", "linear", "pace") and not np.array_equal(
                value, getattr(post.state, name)
            ):
                self.found.append(("not as it was saved", name))
        now = {batch.key for batch in self.post.problem.model.batches}
        self.graph, self.post = epfast.Graph.of(post), post
        self.batches = [key for key in self.batches if key in now]

    def has_own(self) -> bool:
        return any(isinstance(b.factor, graph.Factor) for b in self.post.problem.model.batches)

    def ahead(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for part in self.graph.one_step_ahead().values():
                if np.isposinf(part).any():
                    self.found.append(("not finite", "one_step_ahead is infinite"))


def judged(post: Any, warned: list[Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with a posterior."""
    if not np.isfinite(post.log_evidence):
        yield "not finite", f"log evidence is {post.log_evidence}"
    for key, variables in post.variables.items():
        belief = post[variables]
        for name in ("mean", "variance", "sd"):
            found = getattr(belief, name)
            if np.isnan(found).any() or (name != "mean" and (found < 0.0).any()):
                yield "not finite", f"{name} of a {belief.family} variable, {key}: {found}"
    counted = post.history[-1].n_refused > 0 or sum(i.n_failed for i in post.history) > 0
    schedule = post.problem.schedule
    stopped = schedule.tol == 0.0 or schedule.stores == "none"
    if not (post.converged or counted or stopped or warned):
        yield "not counted", f"{schedule} did not converge, and nothing says so"
    if post.converged and post.history[-1].n_refused:
        yield "false convergence", "factors were refused"
    if schedule.stores == "none":
        return
    where, times = sites_of(post)
    total, size = post.problem.added_up(post.state.beliefs, where, times * post.state.sites)
    gap = np.abs(total - post.state.beliefs)
    for block in post.problem.model.blocks:
        gap[post.problem.at[block.number] + np.arange(2)] = 0.0
    if not (gap <= 1e-300 + ROUNDING * size).all():
        yield "torn", f"beliefs are not priors times sites, by {np.max(gap / (1e-300 + size)):.2g}"


def sites_of(post: Any) -> tuple[np.ndarray, np.ndarray]:
    """Which belief each number of the sites is about, and how often it counts."""
    problem = post.problem.rest(post.problem.linear())
    where, times = [np.empty(0, dtype=np.intp)], [np.empty(0)]
    for batch, rows in zip(problem.model.batches, post.program.rows, strict=True):
        where.append(problem.site_places(batch.select(rows))[0])
        times.append(np.full(len(where[-1]), float(batch.n) if problem.tied else 1.0))
    return np.concatenate(where), np.concatenate(times)


def _bell(x: Any, *more: Any, y: Any) -> Any:
    rest = more[0] if more else 0.0
    return -0.5 * (y - np.tanh(x) - rest) ** 2


def _heavy(x: Any, *more: Any, y: Any) -> Any:
    rest = more[0] if more else 0.0
    return -np.log1p((y - x - rest) ** 2)


def _steep(x: Any, *more: Any, y: Any) -> Any:
    return np.where(x > y, 0.0, -50.0 * np.abs(x - y))


DENSITIES = (_bell, _heavy, _steep)
