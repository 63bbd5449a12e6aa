"""Sends messages through the installed compiled module; fails where it is not used. `native/wheels.py` tries a wheel with it."""

from mqbridge import native
from mqbridge.message import Message


def main() -> None:
    """Every field there and back."""
    assert native.compiled is not None, native.remark
    message = Message(b"payload", (("name", "value"),), key="k", keys=("a", "b"), event_time=5, position=(7, 1))
    [view] = native.compiled.Messages.of([message])
    assert view.as_dict() == message.as_dict(), view
    print(f"compiled module {native.compiled.VERSION}: {native.state}")


if __name__ == "__main__":
    main()
