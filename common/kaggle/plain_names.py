"""Names of files and other people's texts as they can be shown: on one line, and visible."""


def escaped(text: str) -> str:
    r"""Return `text` with escapes in place of what a terminal would act on or could not show.

    >>> escaped("a\nb\x1b[31m\udcff")
    'a\\nb\\x1b[31m\\xff'
    """
    return "".join(sign if sign.isprintable() else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    if "\udc80" <= sign <= "\udcff":  # a byte that is not UTF-8, as `os.fsdecode` gives it
        return f"\\x{ord(sign) - 0xDC00:02x}"
    return sign.encode("unicode_escape").decode()
