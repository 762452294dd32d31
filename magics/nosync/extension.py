"""`%load_ext nosync` and its undoing.

Loading registers the magics, binds `nosync` and arms the restart hook. It opens nothing, shows
nothing (a kernel that loads it at its start has no cell to show it in) and loads no engine.
"""

from __future__ import annotations

import sys
from typing import Any

from nosync.current import current, set_current

_COLLECTION = ("nosync_nb.collections.collection", "Collection")


def load_ipython_extension(shell: Any) -> None:
    """Attaches NoSync to an InteractiveShell."""
    from nosync.completion import register
    from nosync.magic import NoSync

    magics = NoSync(shell)
    shell.register_magics(magics)
    shell.push({"nosync": sys.modules["nosync"]}, interactive=True)
    bundles = shell.display_formatter.mimebundle_formatter
    bundles.for_type_by_name(*_COLLECTION, magics.notebook.collection_bundle)
    register(magics.notebook)
    magics.notebook.attach()
    set_current(magics.notebook)


def unload_ipython_extension(shell: Any) -> None:
    """Detaches NoSync: session, views, hooks, magics, variables and formatters."""
    notebook = current()
    if notebook is None or notebook.shell is not shell:
        return
    from nosync.completion import unregister
    from nosync.magic import NoSync

    set_current(None)
    notebook.detach()
    unregister(notebook)
    manager = shell.magics_manager
    magics = manager.registry.pop("NoSync", None)
    for kind, names in NoSync.magics.items():
        for name in names:
            manager.magics[kind].pop(name, None)
    if magics in shell.configurables:
        shell.configurables.remove(magics)
    _forget_formatter(shell.display_formatter.mimebundle_formatter)
    shell.drop_by_id({"nosync": sys.modules["nosync"]})


def _forget_formatter(formatter: Any) -> None:
    """IPython files a printer under its name until a value of that type is first shown."""
    formatter.deferred_printers.pop(_COLLECTION, None)
    for kind in [kind for kind in formatter.type_printers if _is_collection(kind)]:
        del formatter.type_printers[kind]


def _is_collection(kind: type) -> bool:
    return (kind.__module__, kind.__qualname__) == _COLLECTION
