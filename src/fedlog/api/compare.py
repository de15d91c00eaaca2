"""`fedlog.compare`: run several methods on one federation with several seeds, and give advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedlog.algorithms.registry import Factory, find_method_name
from fedlog.api.progress import ComparisonBar
from fedlog.api.result import Result, make_data_frame
from fedlog.api.run import (
    Body,
    check_callbacks,
    check_data,
    find_input_shape,
    make_body_names,
    open_run_folder,
    separate_options,
)
from fedlog.data.catalog import DEFAULTS, load_federation
from fedlog.data.data_spec import SITES
from fedlog.data.federation import Federation
from fedlog.data.public_tables import NUMBER_TABLES
from fedlog.errors import InputError
from fedlog.experiments.compare import execution, variants
from fedlog.experiments.compare.advice import WORTH, Advice, advise
from fedlog.experiments.compare.findings import Findings, VariantResults
from fedlog.experiments.compare.finished_runs import read_findings
from fedlog.experiments.run.callbacks import Callback
from fedlog.experiments.workers.executors import DASK, make_executor
from fedlog.files.argument_types import check_argument_types
from fedlog.files.flag_rewriting import rewrite_flags_in_errors
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec, make_spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, SEEDS_OF_FEW_ROWS = 5, 20
FEW_ROWS = 2000  # with fewer rows at all sites together, runs are short and more seeds are used
VALIDATION_SHARE = 0.2  # share of the training records held out, for data without validation records


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The outcome of `fedlog.compare`: a run for each method and seed, a table, a picture and advice."""

    findings: Findings
    runs: Mapping[tuple[str, int], Result]
    worth: float = WORTH
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> str:
        """The name of the data set or federation that was compared on."""
        return self.findings.data

    @property
    def methods(self) -> tuple[str, ...]:
        """The labels of the compared methods, in the given order.

        A label is the method's name, followed by codec, body and recipe where several were compared.
        """
        return self.findings.labels

    def runs_of(self, method: str) -> tuple[Result, ...]:
        """Return the runs of one method.

        Args:
            method: the method's label, as in `methods`.

        Returns:
            One run for each seed.

        """
        return tuple(result for (name, _), result in self.runs.items() if name == method)

    @property
    def rows(self) -> tuple[VariantResults, ...]:
        """The results of each method over all seeds: for all sites together and for each site, with intervals."""
        return tuple(self.findings.results.values())

    @cached_property
    def advice(self) -> Advice:
        """Whether to federate, and with which method, judged on validation rows; `str(advice)` gives it as text."""
        return advise(self.findings, self.worth)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about sites with few rows or one class, about the splits, and about runs that failed."""
        return self.findings.warnings

    @property
    def table(self) -> Any:
        """A data frame (pandas, or polars without pandas) with one row for each method and one for each of its sites.

        Columns: `method`; `site`, a name or `all`; `accuracy` on test rows; `gain` over training alone on validation
        rows; `gain_on_test`. `accuracy` and both gains have two more columns each, the ends of their 95 % interval,
        as `accuracy_low` and `accuracy_high`. Only in rows of `all`: `balanced_accuracy`, `macro_f1`, `auroc`,
        `calibration_error`, `bits`.
        """
        from fedlog.report.compare.comparison import make_spreadsheet_rows

        return make_data_frame(make_spreadsheet_rows(self.findings))

    def plot(self) -> Figure:
        """Draw the accuracy of each method against the bits that it sent, for all sites together and for each site.

        Returns:
            A matplotlib figure, which notebooks show; `figure.savefig("compare.png")` writes it.

        """
        from fedlog.report.compare.comparison import draw_comparison

        return draw_comparison(self.findings)

    def write_page(self, path: str | Path) -> Path:
        """Write an HTML page with the advice, the figures and the tables.

        Args:
            path: the HTML file.

        Returns:
            The same path.

        """
        from fedlog.report.compare.comparison_page import write_comparison_page

        return write_comparison_page(Path(path), [(self.findings, self.advice, self.notes)])

    def __repr__(self) -> str:
        from fedlog.report.compare.comparison import format_table_as_text, make_methods_table, make_sites_table

        remarks = [f"note: {note}" for note in (*self.warnings, *self.notes)]
        tables = [
            format_table_as_text(make_methods_table(self.findings)),
            format_table_as_text(make_sites_table(self.findings)),
        ]
        said = [line for line in (self.advice.sentence, self.advice.confirmation) if line]
        return "\n\n".join([*tables, "\n".join([*remarks, *said])])

    def _repr_html_(self) -> str:
        from fedlog.report.compare.comparison import make_methods_table, make_sites_table
        from fedlog.report.parts.render import render_page

        tables = (make_methods_table(self.findings), make_sites_table(self.findings))
        return render_page("comparison_in_notebook.html.j2", tables=tables, advice=self.advice)


@rewrite_flags_in_errors()
@check_argument_types
def compare(
    data: Federation | str,
    methods: Sequence[str | Factory] = variants.METHODS,
    seeds: int | Iterable[int] | None = None,
    *,
    codecs: Sequence[str] = (),
    bodies: Sequence[str] = (),
    recipes: Mapping[str, Mapping[str, Any]] | None = None,
    body: Body | Sequence[Body] | Mapping[str, Body] | None = None,
    out: str | Path | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    jobs: int = 1,
    executor: str = "processes",
    worth: float = WORTH,
    quick: bool = False,
    **settings: Any,
) -> Comparison:
    """Run several methods on one federation, each with every seed, and advise whether to federate.

    All seeds have the same test rows, but each seed has its own validation rows: with four seeds, every row that is not
    a test row is a validation row once. Training alone (`local`) is always run too, and so is training on all rows in
    one place (`pooled`) unless the sites have different bodies.

    Args:
        data: a `Federation`, or the name of a data set, as for `fedlog.run`.
        methods: names, or classes that make an `Algorithm`.
        seeds: how many seeds (0, 1, ...), or a list of them. The default is 5. With fewer than 2,000 rows at all sites
            together, and without `quick`, it is 20: few rows give wide intervals, and more seeds make them narrower.
        codecs: codecs for messages; every method that sends something is run with each.
        bodies: bodies; every method is run with each.
        recipes: sets of settings by name, such as `{"long": {"rounds": 30}}`; every method is run with each.
        body: one body for all, or one for each client, as for `fedlog.run`.
        out: a folder for the runs; runs that are finished there are not run again. Without it, all stays in memory.
        options: options of single methods, by the method's name: `{"fedlog": {"epochs": 3}}`.
        callbacks: `Callback` objects that are called during every run; only with one job.
        progress: whether to show progress; by default in terminals and notebooks.
        jobs: how many runs are computed in parallel, each in its own process; if `data` is a `Federation`, runs follow
            each other, and each uses this many processes.
        executor: `processes`, or `dask://host:port` for a cluster with workers that see the folder `out`.
        worth: the smallest gain, as a share, that would pay for a federation; 0.01 is one point.
        quick: use fewer methods, rounds and steps; the comparison's `notes` list what was left out.
        settings: other settings of `fedlog.run`, the same for every method. An option such as `epochs` goes to all
            methods that have it.

    Returns:
        The runs, a table, a picture, and advice from validation rows.

    """
    check_data(data)
    if not 0 <= worth < 1:
        raise InputError(f"worth must be a share from 0 up to 1, found: {worth:g}", hint="worth=0.01 is one point")
    methods = [methods] if isinstance(methods, str) else methods
    names = tuple(dict.fromkeys([*(find_method_name(method) for method in methods), *variants.REFERENCES]))
    chosen = variants.VariantChoices(
        names, _make_tuple(codecs), _make_tuple(bodies), recipes, options, frozenset(settings)
    )
    common = _make_common_spec(data, chosen, settings)
    federation = data if isinstance(data, Federation) else None
    # Named data sets are run in parallel processes of one job each; a federation in memory uses all jobs in each run.
    jobs_a_run = 1 if federation is None else jobs
    common = replace(common, body=make_body_names(body, lambda: find_input_shape(common, federation)), jobs=jobs_a_run)
    common = _add_validation_fraction(common, federation)
    notes: tuple[str, ...] = ()
    own = _load_user_federation(common, federation)
    _refuse_regression(common, own)
    variants.check_codecs_and_bodies(chosen, common, own)
    if own is not None and federation is None:
        notes = own.notes
    named = () if tuple(methods) == variants.METHODS else tuple(find_method_name(method) for method in methods)
    chosen, left_out = variants.drop_methods_needing_equal_bodies(chosen, common, named)
    notes = (*notes, *left_out)
    chosen, kept = variants.set_required_rounds(chosen, common)
    notes = (*notes, *kept)
    if quick:
        common, chosen, left_out = variants.make_quick_settings(common, chosen, own, methods_named=bool(named))
        notes = (*notes, *left_out)
    if seeds is None:
        few = own is not None and len(own.train) + len(own.test) < FEW_ROWS
        seeds = SEEDS_OF_FEW_ROWS if few and not quick else SEEDS
    plan = _ComparisonPlan(common, chosen, _check_seeds(seeds, methods), federation, jobs, executor)
    return plan.execute(None if out is None else Path(out), check_callbacks(callbacks), progress, worth, notes)


def compare_seeds(spec: RunSpec, seeds: int | Iterable[int], out: Path, jobs: int, progress: bool | None) -> Comparison:
    """Run one method with several seeds, and return the results as a comparison with only this method."""
    chosen = _check_seeds(seeds, [spec.method])
    _refuse_regression(spec, _load_user_federation(spec, None))
    plan = _ComparisonPlan(replace(spec, jobs=1), variants.VariantChoices((spec.method,)), chosen, None, jobs)
    return plan.execute(out, (), progress, WORTH, ())


@dataclass(frozen=True)
class _ComparisonPlan:
    """What a comparison runs: common settings, variants of methods, and seeds; and how many runs run in parallel."""

    common: RunSpec
    choices: variants.VariantChoices
    seeds: tuple[int, ...]
    federation: Federation | None
    jobs: int  # how many runs are computed in parallel
    executor: str = "processes"

    def execute(
        self,
        out: Path | None,
        callbacks: Sequence[Callback],
        progress: bool | None,
        worth: float,
        notes: tuple[str, ...],
    ) -> Comparison:
        """Execute the runs that are not finished in the folder `out`, and return the results of all runs."""
        compared = variants.make_variants(self.common, self.choices)
        with open_run_folder(out) as where:
            runs = variants.list_runs(compared, self.seeds, where)
            failed = self._execute_runs(runs, where, callbacks, progress)
            findings = read_findings(self.common.data, runs, failed)
            by_label = {(run.variant.label, run.seed): run.folder for run in runs}
            results = {key: Result.read(by_label[key]) for key in findings.runs}
            kept = results if out is not None else {key: each.keep_in_memory() for key, each in results.items()}
        own_notes = () if self.federation is None else self.federation.notes
        return Comparison(findings, kept, worth, (*own_notes, *notes))

    def _execute_runs(
        self, runs: Sequence[variants.ComparedRun], out: Path, callbacks: Sequence[Callback], progress: bool | None
    ) -> execution.Failures:
        """Execute the runs, one by one or in parallel; return the errors of failed runs by the name of the run."""
        console = Console(stderr=True, highlight=False)
        seen = console.is_terminal or console.is_jupyter
        console.quiet = progress is False or (progress is None and not seen)
        with ComparisonBar(console) as bar:
            if self.federation is not None or (self.jobs == 1 and self.executor == "processes"):
                return execution.run_one_by_one(runs, self._get_federation_for_seed, bar.show, callbacks)
            if callbacks:
                raise InputError(
                    "callbacks are not called for runs in other processes, found: "
                    f"{len(callbacks)} with jobs={self.jobs} and executor={self.executor}",
                    hint="use jobs=1 without executor, or leave out the callbacks",
                )
            side_by_side = make_executor(self.executor, self.jobs, out)
            # On a cluster one task for each run, because workers may be lost; here one for each job, because a process
            # takes seconds to start.
            tasks = len(runs) if self.executor.startswith(DASK) else self.jobs
            data_dir = None if self.common.data_dir is None else Path(self.common.data_dir)
            return execution.run_in_parallel(runs, side_by_side, tasks, bar.show, data_dir)

    def _get_federation_for_seed(self, seed: int) -> Federation | None:
        """Return the user's `Federation`, split anew for this seed if possible; None if the data are given by name."""
        given = self.federation
        if given is None:
            return None
        # Without `split_again`, every seed has the same rows, so that their positions tell them apart.
        return given.with_numbered_rows() if given.split_again is None else given.split_again(seed)


def _make_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _load_user_federation(spec: RunSpec, given: Federation | None) -> Federation | None:
    """Return the user's own data: `given`, or loaded from `sites:FOLDER` or a function; None for fedlog's data sets."""
    if given is not None or spec.data in DEFAULTS:
        return given
    return load_federation(resolve(spec).data)


def _refuse_regression(spec: RunSpec, own: Federation | None) -> None:
    """Raise InputError if the label of the data is a number: a comparison is about the share of right classes."""
    if spec.data in NUMBER_TABLES or (own is not None and own.train.targets is not None):
        raise InputError(
            f"a comparison needs a label with classes, but the label of {spec.data} is a number",
            hint="`fedlog run --method fed-regression` predicts numbers, one seed at a time",
        )


def _add_validation_fraction(spec: RunSpec, given: Federation | None) -> RunSpec:
    """Return the settings, with a fraction of the training rows to hold out if there are no validation rows yet."""
    if spec.validation_fraction or spec.data.startswith(SITES):
        return spec
    if given is None and spec.data in DEFAULTS:
        return replace(spec, validation_fraction=VALIDATION_SHARE)
    federation = given or load_federation(resolve(spec).data)
    has_some = all(len(shard.validation) for shard in federation.shards)
    return spec if has_some else replace(spec, validation_fraction=VALIDATION_SHARE)


def _check_seeds(seeds: int | Iterable[int], methods: Sequence[object]) -> tuple[int, ...]:
    """Return the seeds as a tuple; InputError if there is no seed or no method, or if a seed is given twice."""
    chosen = tuple(range(int(seeds))) if isinstance(seeds, Integral) else tuple(seeds)  # type: ignore[arg-type]
    wrong = [seed for seed in chosen if not isinstance(seed, Integral) or isinstance(seed, bool) or seed < 0]
    if wrong:
        raise InputError(
            f"every seed must be a whole number from 0 on, found: {wrong[0]!r}", hint="--seeds 5, or --seeds 0,1,7"
        )
    if not methods:
        raise InputError("expected at least one method, found none", hint="--methods fedlog,fedavg")
    if not chosen:
        raise InputError("expected at least one seed, found none", hint="--seeds 5 takes the seeds 0 to 4")
    if len(set(chosen)) < len(chosen):
        found = ", ".join(str(seed) for seed in chosen)
        raise InputError(f"expected different seeds, found: {found}", hint="--seeds 5 takes the seeds 0 to 4")
    return chosen


def _make_common_spec(data: Federation | str, choices: variants.VariantChoices, settings: Mapping[str, Any]) -> RunSpec:
    """Make the settings that all runs share; InputError for a name that is neither a setting nor a method's option."""
    of_recipes = [name for recipe in (choices.recipes or {}).values() for name in recipe]
    of_options = [name for given in (choices.options or {}).values() for name in given]
    variants.check_options(choices.methods, [*settings, *of_recipes, *of_options])
    name = data.name if isinstance(data, Federation) else data
    return make_spec({**separate_options(settings), "data": name}, "fedlog.compare")
