"""The rooms import only what ARCHITECTURE.md lets them, and heavy packages only when needed."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import onnx.defs
import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "intact"
BELOW = "*"  # every room below the API


def rooms(text: str) -> dict[str, tuple[str, ...]]:
    """Return the rooms that each may import, and through them theirs, from the table of a text."""
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    rows = {row[1].strip("`"): row[3].split(", ") for row in cells if len(row) == 5}
    wide = {"all below": BELOW, "": ""}
    return {
        room: tuple(name for each in may if (name := wide.get(each, each.strip("`"))))
        for room, may in rows.items()
        if room not in {"room", "---"}
    }


ARCHITECTURE = PACKAGE.parents[1] / "ARCHITECTURE.md"
ROOMS = rooms(ARCHITECTURE.read_text("utf-8").partition("## The rooms")[2])

# A format whose model file is another's, with rules of its own.
DIALECTS = {"tensorrt": "onnx_qdq"}

# Modules of formats that may run models; all others see programs and what lies below.
RUNNING = frozenset(
    [
        "run",
        "verify",
        "micro",
        "process",
        "processor",
        "comparison",
        "observed",
        "report",
        "verification",
    ]
)

# Packages that an extra brings: never imported when a module of ours is.
OPTIONAL = frozenset(
    [
        "PIL",
        "ai_edge_litert",
        "fast_sugiyama",
        "flatbuffers",
        "ncnn",
        "openvino",
        "optuna",
        "ray",
        "tflite_micro",
        "torch",
        "tvm",
    ]
)

# Modules that name types of rooms above, for type checkers alone: a result keeps what was found.
TYPES_OF_OTHERS = {"results.result": frozenset(["analyze", "placement"])}

# A folder may import the packages for which it is the only place.
AT_HOME = {"improve.learn": frozenset(["torch"])}

# What is not committed: demo/ alone has a model and its samples.
MODEL_SUFFIXES = frozenset(
    {".onnx", ".data", ".npz", ".npy", ".tflite", ".tmfile", ".safetensors", ".pt"}
)
LARGEST = 100_000  # bytes
LEAST_FILES = 500
# Files with the name of one of ONNX's operators as text: those of formats that have such names too.
NAMING_OPERATORS = 30
OPERATORS = frozenset(schema.name for schema in onnx.defs.get_all_schemas_with_history())

parsed = functools.cache(ast.parse)


def module_name(path: Path) -> str:
    """Return the dotted name below the package: ``plan.tie``, ``config.__init__``."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


SOURCES = {module_name(path): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def allowed_rooms(room: str) -> frozenset[str]:
    """Return every room that ``room`` may import, itself included."""
    found: set[str] = set()
    waiting = [room]
    while waiting:
        current = waiting.pop()
        if current == BELOW:
            waiting += set(ROOMS) - {"api", "hago", "cli", "__init__", "__main__"} - found
        elif current not in found:
            found.add(current)
            waiting += ROOMS[current]
    return frozenset(found)


def imported_modules(
    tree: ast.AST, module: str, *, running: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module name) of each import; ``from a import b`` gives ``a.b``.

    Args:
        tree: The module.
        module: Its name below the package.
        running: Leave out what only type checkers import.
    """
    for node in running_nodes(tree) if running else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = ["intact", *module.split(".")][: -node.level] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, late imports included, without those for type checkers."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def imports_of(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which modules each imports, at its top or late, by their names below the package.

    Args:
        sources: By the name of the module.
    """
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = [name for _, name in imported_modules(parsed(source), module, running=True)]
        homes = (_home(name.removeprefix("intact."), sources) for name in names)
        found[module] = {home for home in homes if home not in {None, module}}
    return found


def _home(name: str, modules: Collection[str]) -> str | None:
    """Return the module that a name is imported from: itself, or the one that defines it."""
    while name and name not in modules and f"{name}.__init__" not in modules:
        name = name.rpartition(".")[0]
    return name if name in modules else f"{name}.__init__" if name else None


def circles(imports: Mapping[str, Collection[str]]) -> list[str]:
    """Return each module that leads back to itself, with the way."""
    done: set[str] = set()
    found = []

    def follow(module: str, way: tuple[str, ...]) -> None:
        if module in way:
            found.append(" -> ".join((*way[way.index(module) :], module)))
        elif module not in done:
            for other in sorted(imports.get(module, ())):
                follow(other, (*way, module))
            done.add(module)

    for module in sorted(imports):
        follow(module, ())
    return found


def wrong_imports(source: str, module: str) -> list[str]:
    """Return what ``module`` (a dotted name below ``intact``) imports against the table."""
    room = module.split(".", maxsplit=1)[0]
    if room not in ROOMS:
        return [f"{module}: room {room!r} is not in the table of tests/test_layering.py"]
    wrong = []
    tree = parsed(source)
    runs = {line for line, _ in imported_modules(tree, module, running=True)}
    for line, name in imported_modules(tree, module):
        package, _, rest = name.partition(".")
        if package != "intact" or rest in {"", "__version__"}:
            continue
        parts = rest.split(".")
        if len(parts) == 1 and parts[0] not in ROOMS:
            parts = ["__init__"]  # from intact import quantize
        if parts[0] not in ROOMS:
            wrong += [f"{module}:{line} imports {name}, which belongs to no known room"]
        elif line not in runs and parts[0] in TYPES_OF_OTHERS.get(module, ()):
            continue
        elif parts[0] not in allowed_rooms(room):
            wrong += [f"{module}:{line} imports {name}, but {room} may not import {parts[0]}"]
        elif crosses_formats(module, parts):
            wrong += [f"{module}:{line} imports {name}, but formats do not import each other"]
        elif runs_outside_verification(module, parts):
            wrong += [f"{module}:{line} imports {name}, which run.py and verify.py may"]
    return wrong


def crosses_formats(module: str, target: list[str]) -> bool:
    """Tell whether a module of ``formats/NAME/`` imports from another format's folder."""
    own = module.split(".")
    if own[0] != "formats" or len(own) < 3 or target[0] != "formats" or len(target) < 2:
        return False
    known = {own[1], "base", DIALECTS.get(own[1])}
    return target[1] not in known and (PACKAGE / "formats" / target[1]).is_dir()


def runs_outside_verification(module: str, target: list[str]) -> bool:
    """Tell whether a format's module imports what runs models, which only some may."""
    own = module.split(".")
    if own[0] != "formats" or len(own) < 3 or target[0] not in {"engines", "data"}:
        return False
    return own[-1] not in RUNNING


def imported_at_load(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, top package) of the imports that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from imported_at_load(ast.Module([other], []))
            continue
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name.split(".")[0]) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.lineno, child.module.split(".", maxsplit=1)[0]
        yield from imported_at_load(child)


def heavy_imports(source: str, module: str) -> list[str]:
    """Return the optional packages that importing ``module`` would import."""
    found = imported_at_load(parsed(source))
    homes = (names for folder, names in AT_HOME.items() if module.startswith(f"{folder}."))
    late = OPTIONAL.difference(*homes)
    return [f"{module}:{line} imports {name} at the top" for line, name in found if name in late]


def imports_of_homes(source: str, module: str) -> list[str]:
    """Return where importing ``module`` would import a folder that needs an optional package."""
    tree = parsed(source)
    late = {line for line, name in imported_modules(tree, module) if _leads_home(name, module)}
    at_load = {line for line, _ in imported_at_load(tree)}
    return [f"{module}:{line} imports what needs an extra" for line in sorted(late & at_load)]


def _leads_home(name: str, module: str) -> bool:
    return any(
        name.startswith(f"intact.{folder}") and not module.startswith(f"{folder}.")
        for folder in AT_HOME
    )


def test_there_are_files_to_check() -> None:
    assert {"__init__", "errors"} <= SOURCES.keys()


def test_imports_follow_the_table() -> None:
    assert [
        each for module, source in SOURCES.items() for each in wrong_imports(source, module)
    ] == []


def test_optional_packages_are_imported_late() -> None:
    found = [
        *(each for module, source in SOURCES.items() for each in heavy_imports(source, module)),
        *(each for module, source in SOURCES.items() for each in imports_of_homes(source, module)),
    ]
    assert found == []


def test_no_module_leads_back_to_itself() -> None:
    imports = imports_of(SOURCES)
    assert len(imports["flow.quantize"]) > 10
    assert circles(imports) == []


def test_late_imports_make_circles_and_types_do_not() -> None:
    sources = {
        "plan.a": "from intact.plan import b",
        "plan.b": "def f():\n    from intact.plan.c import g",
        "plan.c": "import intact.plan.a",
        "plan.d": "if TYPE_CHECKING:\n    from intact.plan.e import E",
        "plan.e": "from intact.plan.d import D",
        "plan.__init__": "",
    }
    assert circles(imports_of(sources)) == ["plan.a -> plan.b -> plan.c -> plan.a"]


def test_the_table_has_no_cycle() -> None:
    for room, may in ROOMS.items():
        for other in set(may) - {BELOW}:
            assert room not in allowed_rooms(other), f"{room} and {other} may import each other"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("numerics.affine", "from intact.graph import ops"),
        ("numerics.affine", "def f():\n    import intact.plan.tie"),
        ("graph.ops", "from intact import targets"),
        ("graph.passes.fold", "from ...targets.load import load_target"),
        ("formats.onnx_qdq.write", "from intact.engines.simulate import simulate"),
        ("formats.c.run", "from intact.formats.tflite.run import TfliteRuntime"),
        ("formats.base.format", "from intact.formats.c.write import write_c"),
        ("plan.tie", "from intact.novelty import thing"),
        ("plan.tie", "from intact.api import quantize"),
        ("plan.tie", "from intact import quantize"),
        ("novelty", ""),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(wrong_imports(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("numerics.affine", "import math\nfrom intact.errors import ConfigError"),
        ("numerics.__init__", "from .rounding import Rounding\nfrom . import affine"),
        (
            "calibrate.collect",
            "from intact.numerics import histogram\nfrom intact.graph import ops",
        ),
        ("formats.onnx_qdq.write", "from .quantizers import place\nfrom intact.plan import ends"),
        ("formats.onnx_qdq.verify", "from intact.engines.simulate import simulate"),
        ("formats.tensorrt.format", "from intact.formats.onnx_qdq.write import write_qdq"),
        ("cli", "from intact import __version__, api, quantize\nimport intact"),
    ],
)
def test_a_right_import_passes(module: str, source: str) -> None:
    assert wrong_imports(source, module) == []


def test_torch_is_at_home_in_one_folder() -> None:
    source = "import torch\nimport ray\n"
    assert len(heavy_imports(source, "improve.learn.operators.rules")) == 1
    assert len(heavy_imports(source, "improve.improvements")) == 2
    source = "from intact.improve.learn import module\n"
    assert imports_of_homes(source, "improve.learn.module") == []
    assert len(imports_of_homes(source, "flow.train")) == 1
    assert (
        imports_of_homes("def f():\n    import intact.improve.learn.module\n", "flow.train") == []
    )


def test_late_and_typing_imports_of_optional_packages_pass() -> None:
    late = "def f():\n    import torch\nif TYPE_CHECKING:\n    import ray\n"
    assert heavy_imports(late, "m") == []
    early = "try:\n    import torch.nn as nn\nexcept ImportError:\n    from tvm import relax\n"
    assert len(heavy_imports(early, "m")) == 2


def named_operators(source: str) -> list[str]:
    """List the literals of a module that are types of ONNX's operators."""
    literals = (node.value for node in ast.walk(parsed(source)) if isinstance(node, ast.Constant))
    return [each for each in literals if isinstance(each, str) and each in OPERATORS]


def test_operators_are_named_in_few_files() -> None:
    """Operators are named by their declarations, and facts are asked for: a number to go down."""
    naming = [module for module, source in SOURCES.items() if named_operators(source)]
    assert len(naming) <= NAMING_OPERATORS


def test_passes_over_programs_do_not_import_the_lowering() -> None:
    """The lowering runs passes: the other way round it would be a cycle."""
    folder = PACKAGE / "program" / "passes"
    wrong = [
        f"{path.name}:{line} imports {name}"
        for path in folder.glob("*.py")
        for line, name in imported_modules(parsed(path.read_text("utf-8")), module_name(path))
        if name.startswith("intact.program.lower")
    ]
    assert wrong == []


def test_no_model_of_others_and_no_large_file_lies_in_the_tree() -> None:
    """Tools leave weights and graphs where they run; what is committed stays for ever."""
    root, demo = PACKAGE.parents[1], PACKAGE / "demo"
    folders = ("benchmarks", "docs", "examples", "src", "tests", "tools")
    files = [path for each in folders for path in (root / each).rglob("*") if path.is_file()]
    assert len(files) > LEAST_FILES
    wrong = [
        path.relative_to(root)
        for path in files
        if path.suffix in MODEL_SUFFIXES or path.stat().st_size > LARGEST
        if demo not in path.parents and "__pycache__" not in path.parts
    ]
    assert wrong == []
