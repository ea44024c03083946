"""Every finding that the code can make, read from its source: code, severities, titles, and which pages make it."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eagle3lib.findings import STAGES, Severity

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "eagle3lib"
#: What stands in a title for what is computed.
GAP = "…"
#: The command that makes findings without a notebook, and the function behind it.
COMMAND = ("check", "eagle3lib.examination.examine")


@dataclass
class Made:
    """One code. `titles` has what is computed as gaps; `pages` are numbers of notebooks, and `check`."""

    code: str
    severities: set[Severity] = field(default_factory=set)
    titles: list[str] = field(default_factory=list)
    pages: set[str] = field(default_factory=set)


def findings_made() -> dict[str, Made]:
    """By code, in the order of the verdict and then of the alphabet.

    Raises:
        ValueError: if a code is computed from more than choices between texts, so that it cannot be listed.
    """
    found: dict[str, Made] = {}
    callers, tables = _callers(), _tables()
    for path in sorted(LIBRARY.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        severities = tables | _choosers(tree)
        for scope, call in _calls(tree):
            given = dict(zip(("code", "severity", "title"), call.args, strict=False))
            given |= {keyword.arg: keyword.value for keyword in call.keywords}
            codes = list(_texts(given["code"], scope))
            if not codes or any(GAP in code for code in codes):
                raise ValueError(f"{path}:{call.lineno}: the code of this finding is not readable from the source")
            for code in codes:
                made = found.setdefault(code, Made(code))
                made.severities |= _severities(given["severity"], scope, severities)
                made.titles += [t for t in _texts(given["title"], scope) if t not in (*made.titles, GAP)]
                made.pages |= _pages(f"{_module(path)}.{scope.name}", callers)
    return dict(sorted(found.items(), key=lambda item: (STAGES.index(item[0].split(".")[0]), item[0])))


def _calls(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
    """Every `Finding(...)` with the function around it."""
    for scope in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                yield scope, node


def _assigned(name: str, scope: ast.FunctionDef) -> list[ast.expr]:
    """What a name of a function may stand for."""
    values = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    values.append(node.value)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)
                    values += [v for t, v in pairs if isinstance(t, ast.Name) and t.id == name]
    return values


def _texts(node: ast.expr, scope: ast.FunctionDef) -> list[str]:
    """The texts that an expression can be, with gaps for what is computed."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, scope), *_texts(node.orelse, scope)]
    if isinstance(node, ast.JoinedStr):
        parts = [[v.value] if isinstance(v, ast.Constant) else _part(v.value, scope) for v in node.values]
        return _joined(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([_texts(node.left, scope), _texts(node.right, scope)])
    if isinstance(node, ast.Name) and (values := _assigned(node.id, scope)):
        return [text for value in values for text in _texts(value, scope)]
    return [GAP]


def _part(node: ast.expr, scope: ast.FunctionDef) -> list[str]:
    """The value in an f-string: a choice between texts, or a gap."""
    if isinstance(node, ast.Name) and all(_is_choice(value) for value in _assigned(node.id, scope)):
        return _texts(node, scope)
    return [GAP]


def _is_choice(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_choice(node.body) and _is_choice(node.orelse)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _joined(parts: list[list[str]]) -> list[str]:
    texts = [""]
    for choices in parts:
        texts = [text + choice for text in texts for choice in choices]
    return texts


def _severities(node: ast.expr, scope: ast.FunctionDef | None, tables: dict[str, set[Severity]]) -> set[Severity]:
    """The severities that an expression can be: those it names, or those of a table or a function that chooses it."""
    names = {
        n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)
    }
    found = {Severity[name] for name in names & set(Severity.__members__)}
    for name in names & set(tables):
        found |= tables[name]
    if not found and scope is not None and isinstance(node, ast.Name):
        for value in _assigned(node.id, scope):
            found |= _severities(value, scope, tables)
    return found


def _tables() -> dict[str, set[Severity]]:
    """The severities in each dictionary that a module defines, by its name."""
    found: dict[str, set[Severity]] = {}
    for path in LIBRARY.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                severities = set().union(*(_severities(value, None, {}) for value in node.value.values))
                if severities and isinstance(node.targets[0], ast.Name):
                    found[node.targets[0].id] = severities
    return found


def _choosers(tree: ast.Module) -> dict[str, set[Severity]]:
    """The severities that each function of a module whose answer is a severity returns."""
    return {
        node.name: set().union(*(_severities(n, None, {}) for n in ast.walk(node) if isinstance(n, ast.Return)))
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) == "Severity"
    }


def _callers() -> dict[str, set[str]]:
    """Who uses a function, "module.function" or a notebook's number, by "module.function"."""
    trees = {_module(path): ast.parse(path.read_text(encoding="utf-8")) for path in LIBRARY.rglob("*.py")}
    places = {module: _places(module, tree) for module, tree in trees.items()}
    used: dict[str, set[str]] = defaultdict(set)

    def note(user: str, node: ast.AST, named: dict[str, str]) -> None:
        for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & set(named):
            module, _, function = named[name].rpartition(".")
            used[places.get(module, {}).get(function, named[name])].add(user)  # through a package's __init__

    for module, tree in trees.items():
        for node in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
            note(f"{module}.{node.name}", node, {k: v for k, v in places[module].items() if k != node.name})
    for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        source = ast.parse("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
        note(path.name[:2], source, _places("", source))
    return used


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _places(module: str, tree: ast.Module) -> dict[str, str]:
    """Name → "module.function" of what a module defines or takes from the library."""
    found = {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(LIBRARY.name):
            found |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    return found


def _pages(function: str, callers: dict[str, set[str]]) -> set[str]:
    """The notebooks, and the command, from which a function is reached."""
    found, seen, open_names = set(), set(), [function]
    while open_names:
        name = open_names.pop()
        if name in seen:
            continue
        seen.add(name)
        if name == COMMAND[1]:
            found.add(COMMAND[0])
        if name.isdigit():
            found.add(name)
        else:
            open_names += callers.get(name, ())
    return found
