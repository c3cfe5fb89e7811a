"""Imports among our own modules. The layers are contracts in pyproject.toml, which `ops/check` compares."""

from graphlib import TopologicalSorter

import grimp


def test_no_import_leads_back_to_where_it_began() -> None:
    """Imports inside functions count: one that dodges a circle hides it. import-linter has a contract for this among
    siblings; it does not see a package that imports a module, which imports names from the package."""
    graph = grimp.build_graph(
        "sleipnir",
        "sleipnir_inprocess",
        "sleipnir_console",
        "sleipnir_scheduler",
        "sleipnir_workers",
        exclude_type_checking_imports=True,
        cache_dir=None,
    )
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert imports["sleipnir.cli.app"] >= {"sleipnir.errors"}
    assert imports["sleipnir_inprocess.runner"] >= {"sleipnir_scheduler.planner.plan"}
    # `invoke` of a compiled graph imports what executes it when it is called; pyproject.toml names the same exception.
    imports["sleipnir.python_graph.compiled"].remove("sleipnir_inprocess.calls")
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules
