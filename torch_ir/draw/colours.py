"""Colours and font of a DOT drawing."""

from __future__ import annotations

FONT = "DejaVu Sans"
# kind of box or family of operators -> fill and border
COLOURS: dict[str, tuple[str, str]] = {
    "input": ("#dff3e1", "#3f9150"),
    "output": ("#dcebfb", "#3574b8"),
    "weight": ("#f6f6f6", "#cccccc"),
    "note": ("#ffffff", "#9a9a9a"),
    "stub": ("#ffffff", "#9a9a9a"),
    "placeholder": ("#f9c9c5", "#c62828"),
    "decision": ("#fff6e5", "#b26a00"),
    "connector": ("#ffffff", "#8a8a8a"),
    "matmul": ("#ffe3bd", "#cf8519"),
    "attention": ("#ffd8cc", "#d2623f"),
    "normalisation": ("#eae0f8", "#8560c2"),
    "activation": ("#fdf3b8", "#b8990f"),
    "elementwise": ("#d9f1ef", "#35958d"),
    "reduction": ("#fbdeeb", "#bf5288"),
    "movement": ("#e7edf3", "#74899e"),
    "communication": ("#dbe6fd", "#3f74d9"),
    "other": ("#ffffff", "#7d7d7d"),
}
MARKS = {"removed": ("#fbd5d5", "#c62828"), "added": ("#cfeed4", "#2e7d32"), "changed": ("#fde7b8", "#b26a00")}
PLAIN = ("#f7f7f7", "#b4b4b4")  # in a comparison, what is equal on both sides
DEAD = "#b4b4b4"  # of text and border, where nothing depends on a box
CENTRE = "#1f4e9c"
