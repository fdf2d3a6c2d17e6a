"""Triton's interpreter, where its version and numpy's do not fit each other."""

from typing import Any


def accept_arrays_as_indices() -> None:
    """Let loops of interpreted kernels end at a value that the kernel was given.

    Up to version 3.6 the interpreter makes an index of an array of one value by `int`, which
    numpy refuses from version 2.5 on.
    """
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda value: int(value.handle.data.item()))

    interpreter._patch_lang_tensor = patched
