"""How the kernels of the slot loop are compiled.

Four things differ from a plain ``@njit(cache=True)``:

* No reference counting. Kernels allocate nothing and only borrow arrays from their caller;
  counting references to the arrays of a state at each call would cost five times the rest.
* No interpreter lock, so that independent cells run on as many cores as there are threads.
* Division follows NumPy, so that no kernel has an exception path.
* The cached machine code depends on the sources of *all* kernels. Numba looks at the file of the
  compiled function alone, but the slot loop contains the code of every kernel that it calls:
  after an edit of one of those it would go on running the old code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

_PACKAGES = ("nr", "gpu", "mac")


@cache
def sources_digest() -> str:
    """Digest of every source file that a kernel may contain code of."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function of the slot loop; see the module for what that means."""
    compiled = njit(cache=True, error_model="numpy", nogil=True, _nrt=False)(function)
    file = getattr(compiled._cache, "_cache_file", None)
    if file is not None:  # None where numba found no place for a cache
        file._source_stamp = (file._source_stamp, sources_digest())
    return compiled
