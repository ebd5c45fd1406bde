"""A reliability plot as one SVG file that needs nothing else."""

from collections.abc import Mapping

from dflash_core.training.confidence.calibration import Reliability

SIDE, MARGIN, GAP, STRIP = 300, 54, 56, 46
"""Pixels: of a diagram, around it, between two, and the height of its counts."""

BLUE, GREY, DIM, INK = "#2a6fb0", "#c9cdd2", "#868b92", "#26292d"


def reliability_svg(title: str, diagrams: Mapping[str, Reliability]) -> str:
    """Diagrams side by side: stated probability to the right, what happened upwards, counts below.

    Args:
        diagrams: by caption.
    """
    width = MARGIN + len(diagrams) * (SIDE + GAP)
    height = 78 + SIDE + STRIP + 66
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(MARGIN, 26, title, size=16),
    ]
    for index, (caption, one) in enumerate(diagrams.items()):
        parts += _diagram(MARGIN + index * (SIDE + GAP), 78, caption, one)
    return "\n".join([*parts, "</svg>", ""])


def _diagram(left: int, top: int, caption: str, one: Reliability) -> list[str]:
    bottom = top + SIDE
    parts = [
        _text(left, top - 24, caption, size=13),
        _text(left, top - 8, f"ECE {one.ece:.4f}   NLL {one.nll:.4f}   n = {one.count}"),
        f'<rect x="{left}" y="{top}" width="{SIDE}" height="{SIDE}" fill="none" stroke="{GREY}"/>',
        f'<line x1="{left}" y1="{bottom}" x2="{left + SIDE}" y2="{top}" stroke="{DIM}" '
        'stroke-dasharray="4 4"/>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = left + tick * SIDE, bottom - tick * SIDE
        parts.append(_text(x, bottom + STRIP + 18, f"{tick:g}", anchor="middle"))
        parts.append(_text(left - 6, y + 4, f"{tick:g}", anchor="end"))
    most = max((bin.count for bin in one.bins), default=1)
    for bin in one.bins:
        x, wide = left + bin.low * SIDE, (bin.high - bin.low) * SIDE
        tall = bin.frequency * SIDE
        about = f"{bin.count} events, stated {bin.confidence:.3f}, happened {bin.frequency:.3f}"
        parts.append(
            f'<rect x="{x:.1f}" y="{bottom - tall:.1f}" width="{wide - 1:.1f}" height="{tall:.1f}" '
            f'fill="{BLUE}" fill-opacity="0.25"><title>{about}</title></rect>'
        )
        counted = bin.count / most * (STRIP - 10)
        parts.append(
            f'<rect x="{x:.1f}" y="{bottom + 6:.1f}" width="{wide - 1:.1f}" height="{counted:.1f}" '
            f'fill="{GREY}"><title>{about}</title></rect>'
        )
    points = [(left + bin.confidence * SIDE, bottom - bin.frequency * SIDE) for bin in one.bins]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{BLUE}"/>' for x, y in points]
    parts.append(
        _text(left + SIDE / 2, bottom + STRIP + 40, "stated probability (counts above)", anchor="middle")
    )
    if caption and left == MARGIN:
        parts.append(
            f'<text x="14" y="{top + SIDE / 2:.0f}" text-anchor="middle" '
            f'transform="rotate(-90 14 {top + SIDE / 2:.0f})">share that was accepted</text>'
        )
    return parts


def _text(x: float, y: float, content: str, size: int = 12, anchor: str = "start") -> str:
    safe = content.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} xml:space="preserve">{safe}</text>'
