"""The lifecycle tables as Mermaid state diagrams, for docs/structures.md.

`python -m omni_cli.runtime.diagram` prints them.
"""

from omni_cli.runtime.lifecycle import TABLES, Table


def mermaid(table: Table) -> str:
    """One state diagram: events that lead from one state to the same other one share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), target in table.items():
        arrows.setdefault((state, target), []).append(event)
    lines = ["stateDiagram-v2"]
    lines += [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in arrows.items()]
    return "\n".join(lines)


def document() -> str:
    """All tables, each under its name, as a Markdown section."""
    return "\n\n".join(f"**{name}**\n\n```mermaid\n{mermaid(table)}\n```" for name, table in TABLES.items())


if __name__ == "__main__":
    print(document())
