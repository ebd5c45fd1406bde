"""A command of one's own."""


def hello_command(name: str = "world") -> None:
    """Greet somebody."""
    print(f"hello {name}")
