# SPDX-License-Identifier: Apache-2.0
"""The charts of bench/results as SVG."""
import math

GOOD, BAD, AXIS = "#3a7d44", "#c1440e", "#444"
LINES = ("#1b6ca8", "#3a7d44", "#c1440e", "#8a4fa3", "#c79a00")


def write(path, width, height, title, elements):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            f'font-size="11"><rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="10" y="18" font-size="13">{title}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join((*head, *elements)) + "</svg>")


def line(x1, y1, x2, y2, dashed=True):
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{AXIS}"{dash}/>'


def bars(rows, path):
    """A bar for each target: its value, or the first ratio over its target."""
    shares = []
    for row in rows:
        for target in row["targets"]:
            if target["value"] is not None:
                wanted = float(target["target"].split()[1])
                share = target["value"] / wanted if target["target"].startswith(">=") else wanted / max(target["value"], 1e-9)
                shares.append((f"{row['name']}: {target['what']}", min(share, 3.0), target["met"]))
    height = 18 * len(shares) + 40
    text = []
    for i, (name, share, met) in enumerate(shares):
        y = 30 + 18 * i
        text.append(f'<text x="440" y="{y + 11}" text-anchor="end">{name}</text>'
                    f'<rect x="450" y="{y + 2}" width="{150 * share:.1f}" height="12" fill="{GOOD if met else BAD}"/>'
                    f'<text x="{455 + 150 * share:.1f}" y="{y + 11}">{share:.2f}</text>')
    text.append(line(600, 26, 600, height - 8))
    write(path, 960, height, "measured / target (1 = the target; cut at 3)", text)


def panels(title, graphs, path, x_label, mark, low=0.5, high=4.0):
    """Small graphs of two columns: {title: {series: [(x, ratio)]}}; both axes logarithmic, `mark` is a dashed line."""
    wide, tall, left, top = 460, 220, 40, 60
    names = list(dict.fromkeys(name for series in graphs.values() for name in series))
    text = []
    for i, name in enumerate(names):
        color = LINES[i % len(LINES)]
        text.append(f'<rect x="{left + 110 * i}" y="28" width="10" height="10" fill="{color}"/>'
                    f'<text x="{left + 110 * i + 15}" y="37">{name}</text>')
    xs = [x for series in graphs.values() for points in series.values() for x, _ in points]
    first, last = math.log2(min(xs)), math.log2(max(xs))
    for i, (name, series) in enumerate(graphs.items()):
        x0, y0 = left + (i % 2) * (wide + 30), top + (i // 2) * (tall + 50)

        def place(x, y, x0=x0, y0=y0):
            share = math.log(min(max(y, low), high) / low) / math.log(high / low)
            return x0 + (math.log2(x) - first) / (last - first) * wide, y0 + tall * (1 - share)

        text.append(f'<text x="{x0}" y="{y0 - 6}" font-size="12">{name}</text>')
        text.append(f'<rect x="{x0}" y="{y0}" width="{wide}" height="{tall}" fill="none" stroke="{AXIS}"/>')
        for y in (low, 1, 2, high):
            text.append(f'<text x="{x0 - 5}" y="{place(2 ** first, y)[1] + 4:.1f}" text-anchor="end">{y:g}</text>')
        y = place(2 ** first, mark)[1]
        text.append(line(x0, y, x0 + wide, y))
        for power in range(math.ceil(first), math.floor(last) + 1, 4):
            text.append(f'<text x="{place(2 ** power, 1)[0]:.1f}" y="{y0 + tall + 14}" text-anchor="middle">'
                        f'{x_label(2 ** power)}</text>')
        for key, points in series.items():
            at = [place(x, y) for x, y in sorted(points)]
            color = LINES[names.index(key) % len(LINES)]
            text.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in at)}" fill="none" stroke="{color}"/>')
            text += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{color}"/>' for x, y in at]
    write(path, 2 * (wide + 30) + left, top + (len(graphs) + 1) // 2 * (tall + 50), title, text)
