"""Hostile parameters of every entry point, one to three at a time, and of the command line."""

from hypothesis import strategies as st

from dpmd_fast import Budget, Guarantee, write_report
from fuzz.harness import TALLY, bank, folder, fuzzed, judged
from fuzz.lines import run_line
from fuzz.strategies import REFERENCE, Made, parameter_changes, parameter_values
from fuzz.targets import ALL, BUDGET, POINTS, atlas, queries, reference

PARAMETERS = {
    name: tuple(argument for argument in target.arguments() if argument not in target.arrays)
    for name, target in ALL.items()
}
FUZZED = sorted(name for name, parameters in PARAMETERS.items() if parameters)
SPENDING = sorted(name for name in FUZZED if ALL[name].spends)
FREE = sorted(set(FUZZED) - set(SPENDING))
LASTING = {"candidates", "replicates"}  # who asks for many of them asks for minutes


@st.composite
def changed(draw, names):
    name = draw(st.sampled_from(names))
    return name, draw(parameter_changes(PARAMETERS[name]))


def _run(name, changes):
    target = ALL[name]
    arguments = target.arguments()
    private = next((arguments[array] for array in target.arrays), None)
    for argument, made in changes.items():
        if argument in LASTING and type(made.value) is int and 1_000 < made.value <= 1_000_000:
            return
        arguments[argument] = private if made.value is REFERENCE else made.value
    spender = target.paid(arguments)
    ours = arguments.get("ledger") is bank().ledger or name == "Ledger.spend"
    judged(
        f"parameters, {name}",
        f"{name}({', '.join(f'{key}={made.label}' for key, made in changes.items())})",
        lambda: target.call(arguments),
        named=target.names(*changes) | {"dim", "columns", "ledger", "no budget pays"},
        paid=(lambda result: spender(result) if ours else None) if spender else None,
        inputs=[value for value in arguments.values() if not hasattr(value, "__next__")],
        check=lambda result: target.check(arguments, result),
        unlucky=target.unlucky,
        foreign=target.foreign,
        private=target.private,
    )


@fuzzed(0.06, case=changed(SPENDING))
def test_parameters_where_a_budget_is_spent(case):
    _run(*case)


@fuzzed(0.06, case=changed(FREE))
def test_parameters_that_cost_nothing(case):
    _run(*case)


def sizes(largest):
    """Numbers of all sizes, and odd values."""
    powers = st.floats(-323.0, largest).map(lambda x: Made(repr(10.0**x), 10.0**x))
    return st.one_of(powers, powers, parameter_values())


@fuzzed(0.05, epsilon=sizes(308.0), delta=sizes(0.0), conversion=st.sampled_from(["gdp", "zcdp", "paper"]))
def test_budgets_of_all_sizes(epsilon, delta, conversion):
    """Whatever is accepted as a budget buys something finite, and can be converted back."""
    budget = judged(
        "parameters, budgets of all sizes",
        f"Budget({epsilon.label}, {delta.label}, {conversion})",
        lambda: Budget(epsilon.value, delta.value, conversion),
        named={"epsilon", "delta", "conversion"},
    )
    if isinstance(budget, Exception):
        return

    def check(again):
        assert abs(again.rho / budget.rho - 1.0) < 1e-6, f"{again.rho}, {budget.rho}"

    judged(
        "parameters, budgets from rho",
        f"Budget.from_rho({budget.rho!r}, {budget.delta!r}, {conversion})",
        lambda: Budget.from_rho(budget.rho, budget.delta, conversion),
        named={"rho"},
        check=check,
    )


@fuzzed(0.01, name=st.sampled_from(["tangents", "cleaned"]), dim=parameter_values())
def test_what_is_read_off_a_release(name, dim):
    release = _release()
    judged(
        "parameters, Release",
        f"Release.{name}({dim.label})",
        lambda: getattr(release, name)(dim.value),
        named={"dim"},
    )


_MADE = []


def _release():
    if not _MADE:
        target = POINTS["release_moments"]
        _MADE.append(target.call({**target.arguments(paid=False), "budget": Budget(50.0, 1e-6)}))
    return _MADE[0]


REPORTED = (
    *("queries", "denoised", "status", "guarantee", "atlas", "title", "receipt", "ledger", "dataset"),
    *("public_points", "parameters", "truth", "column_names", "sections", "mixture", "noise"),
)


@fuzzed(0.0005, changes=parameter_changes(REPORTED))
def test_parameters_of_reports(changes):
    points = queries()
    arguments = {"queries": points, "denoised": points, "status": ["ok"] * len(points), "atlas": atlas()}
    for argument, made in changes.items():
        arguments[argument] = reference() if made.value is REFERENCE else made.value
    path = folder() / "report.html"
    path.unlink(missing_ok=True)

    def check(_):
        assert "</html>" in path.read_text(), "is not complete"

    result = judged(
        "parameters, write_report",
        f"write_report({', '.join(f'{key}={made.label}' for key, made in changes.items())})",
        lambda: write_report(path, **arguments),
        named={*changes, "queries", "guarantee", "ledger"},
        check=check,
        private=False,
    )
    assert result is None or not path.exists()


# The command line

PAID = "--ledger bank.db --dataset rich"
FILES = "--reference reference.parquet"
COMMANDS = {
    "plan": "plan --reference-rows 2000 --queries queries.parquet --dim 1 --epsilon 1 --delta 1e-6",
    "fit": f"fit {FILES} --anchors queries.parquet --dim 1 --bandwidth 0.9 --rounds 1 --epsilon 60 "
    f"--delta 1e-6 --accept-risk {PAID} -o new.dpmd",
    "transform": "transform --atlas atlas.dpmd queries.parquet -o new.parquet",
    "plan mixture": "plan --model mixture --reference-rows 2000 --queries queries.parquet --noise 0.5 "
    "--epsilon 1 --delta 1e-6",
    "fit mixture": f"fit --model mixture {FILES} --queries queries.parquet --components 1 --epsilon 60 "
    f"--delta 1e-6 --accept-risk {PAID} -o new.dpmd",
    "transform mixture": "transform --model mixture.dpmd --noise 0.5 queries.parquet -o new.parquet",
    "denoise": f"denoise {FILES} queries.parquet --bandwidth 0.8 --dim 1 --epsilon 1 --delta 1e-6 "
    f"--accept-risk {PAID} -o new.parquet",
    "ledger create": "ledger create --ledger bank.db --dataset NEW --epsilon 1 --delta 1e-6",
    "ledger show": "ledger show --ledger bank.db",
    "preprocess": f"preprocess {FILES} --bounds bounds.json --epsilon 60 --delta 1e-6 {PAID} -o new.json",
}
MORE = {
    "plan": "--bandwidth --cover --adjacency --conversion --threads --columns --noise --model",
    "fit": "--bandwidth --cover --rounds --adjacency --on-invalid --columns --n-public --seed --threads "
    "--batch-rows --preprocess --conversion --json --reference --no-ledger --noise --model",
    "transform": "--threads --status-column --json --force",
    "plan mixture": "--components --rounds --noise --adjacency --preprocess --columns --dim",
    "fit mixture": "--components --rounds --on-missing --on-invalid --preprocess --columns --n-public "
    "--adjacency --batch-rows --threads --no-ledger --dim --noise",
    "transform mixture": "--noise --on-missing --deviations --status-column --threads --json",
    "denoise": "--steps --mechanism --sensitivity-constant --adjacency --columns --seed --threads "
    "--batch-rows --status-column --beta --theta --no-ledger",
    "ledger create": "--adjacency --bind-to --json",
    "ledger show": "--dataset --json",
    "preprocess": "--log --clip --bins --columns --adjacency --seed --on-invalid",
}
WORDS = (
    *(
        "",
        " ",
        "0",
        "1",
        "2",
        "-1",
        "1e-6",
        "0.5",
        "nan",
        "inf",
        "-inf",
        "1e308",
        "1e-320",
        "1e400",
        "9" * 400,
    ),
    *("auto", "one", "x", "y", "x,y", "x,x", "x,nobody", ",", 'x,"y', "rich", "poor", "other", "nobody"),
    *(
        "add-remove",
        "drop",
        "projector",
        "zcdp",
        "paper",
        "reference.parquet",
        "queries.parquet",
        "atlas.dpmd",
        "mixture.dpmd",
        "x=0.5",
        "fill",
    ),
    *("bank.db", "nothing.parquet", "folder", "bounds.json", "reference.csv", "text.parquet", "/dev/null"),
    *("a\nb", "ä", "\udcff", "--help", "--", "--epsilon", "-o", "new.csv", "new.npy", "x" * 300),
)


@st.composite
def command_lines(draw):
    verb = draw(st.sampled_from(sorted(COMMANDS)))
    words = COMMANDS[verb].split()
    places = [k for k in range(len(words)) if k > verb.count(" ")]
    for _ in range(draw(st.integers(1, 2))):
        what = draw(st.sampled_from(["put", "put", "drop", "add", "add", "swap"]))
        k = draw(st.sampled_from(places))
        if what == "put" and k < len(words):
            words[k] = draw(st.sampled_from(WORDS))
        elif what == "drop" and k < len(words):
            del words[k]
        elif what == "add":
            words += [draw(st.sampled_from(MORE[verb].split())), draw(st.sampled_from(WORDS))]
        elif what == "swap":
            a, b = draw(st.sampled_from(places)), k
            if max(a, b) < len(words):
                words[a], words[b] = words[b], words[a]
    return verb, words


@fuzzed(0.02, case=command_lines())
def test_command_lines(case):
    verb, words = case
    run_line(f"command line, {verb}", words)


def test_the_commands_are_good():
    for verb, command in COMMANDS.items():
        before = TALLY[f"commands, {verb}", "accepted"]
        run_line(f"commands, {verb}", command.split())
        assert TALLY[f"commands, {verb}", "accepted"] == before + 1


def test_the_calls_are_good():
    for name, target in ALL.items():
        arguments = target.arguments()
        if name == "Ledger.record_file":
            bank().open().spend("rich", 0.1, "a release")
        result = target.call(arguments)
        target.check(arguments, result)
    assert isinstance(_release().guarantee, Guarantee)
    assert BUDGET.mu > 0.0
