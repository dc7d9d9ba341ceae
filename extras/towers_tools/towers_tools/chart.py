"""Chart: curves as SVG, drawn in plain Python, for a page that brings the colours.

   2.5 ┤╲                       a `Curve` is a name and points (x, y); NaN and Inf are left out
   1.5 ┤ ╲__•
   0.5 ┤    ╲____•____
       └─────┬──────┬──
            100    200
"""

import html
import math
from typing import List, NamedTuple, Sequence, Tuple

_WIDTH, _HEIGHT = 560, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 26
NUM_COLOURS = 6


class Curve(NamedTuple):
  """One line of a chart."""
  name: str  # In the legend, and in the title of each dot.
  points: Sequence[Tuple[float, float]]  # (x, y), x at least 0 and rising.
  colour: int  # From 0; the page has a colour for each class `c0`, `c1`, ….
  has_dots: bool = False  # Draws a thick line with a dot at each point, instead of a thin line.


def draw_chart(title: str, curves: Sequence[Curve], *, from_zero: bool = False) -> str:
  """Returns a figure with a legend, or '' if no curve has a point."""
  curves = _drop_not_finite(curves)
  if not curves:
    return ''
  legend = ''.join(_legend_entry(curve) for curve in curves)
  drawing = _draw(curves, least=0.0 if from_zero else None)
  return (f'<figure><figcaption>{html.escape(title)} <small>{legend}</small></figcaption>'
          f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}">'
          f'{drawing}</svg></figure>')


def _drop_not_finite(curves):
  """Returns the curves that have finite points, with these points alone."""
  curves = [curve._replace(points=[(x, y) for x, y in curve.points if math.isfinite(y)])
            for curve in curves]
  return [curve for curve in curves if curve.points]


def _colour_class(curve):
  return f'c{curve.colour % NUM_COLOURS}'


def _legend_entry(curve):
  mark = '●' if curve.has_dots else '━'
  return f'<span class="{_colour_class(curve)}">{mark} {html.escape(curve.name)}</span>'


def _draw(curves, *, least):
  """Returns the body of an SVG of `_WIDTH` by `_HEIGHT`: grid, numbers at both axes, curves."""
  # From 0 on, so that all charts of a run share one axis.
  xs = [0.0] + [x for curve in curves for x, _ in curve.points]
  ys = [y for curve in curves for _, y in curve.points]
  x_ticks = find_ticks(min(xs), max(xs), 6)
  y_ticks = find_ticks(min(ys) if least is None else least, max(ys), 4)
  left, right = min(xs), max(xs)
  bottom, top = min(min(ys), y_ticks[0]), max(max(ys), y_ticks[-1])

  def place(x, y):
    across = (x - left) / (right - left) if right > left else 0.5
    up = (y - bottom) / (top - bottom) if top > bottom else 0.5
    return (_LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM))

  parts = []
  for y in y_ticks:
    _, down = place(left, y)
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{down:.1f}" '
                 f'y2="{down:.1f}"/>')
    parts.append(f'<text x="{_LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">'
                 f'{format_number(y)}</text>')
  for x in x_ticks:
    if left <= x <= right:
      parts.append(f'<text x="{place(x, bottom)[0]:.1f}" y="{_HEIGHT - 8}" '
                   f'text-anchor="middle">{format_number(x)}</text>')
  for curve in curves:
    colour, thick = _colour_class(curve), ' thick' if curve.has_dots else ''
    placed = [place(x, y) for x, y in curve.points]
    line = ' '.join(f'{across:.1f},{down:.1f}' for across, down in placed)
    parts.append(f'<polyline class="{colour}{thick}" points="{line}"/>')
    if curve.has_dots or len(curve.points) == 1:
      for (x, y), (across, down) in zip(curve.points, placed):
        title = f'{html.escape(curve.name)}, step {format_number(x)}: {y:.4g}'
        parts.append(f'<circle class="{colour}" cx="{across:.1f}" cy="{down:.1f}" r="3">'
                     f'<title>{title}</title></circle>')
  return ''.join(parts)


def find_ticks(least: float, most: float, count: int) -> List[float]:
  """Returns about `count` round numbers from at or below `least` to at or above `most`."""
  if most <= least:
    return [least]
  rough = (most - least) / count
  power = 10.0 ** math.floor(math.log10(rough))
  step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
  first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
  return [index * step for index in range(first, last + 1)]


def format_number(value: float) -> str:
  """Returns 0, 0.25, 1,500 or 2e-05."""
  if value == 0 or 1e-3 <= abs(value) < 1e7:
    return f'{round(value, 6):,.10g}'
  return f'{value:.3g}'
