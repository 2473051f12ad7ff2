"""The page's style sheet, for light and dark screens and for print."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --ink: #16202c; --soft: #5a6675; --edge: #dfe4ea;
  --grid: #e8ecf0; --code: #f0f3f6;
  --good: #0b7a43; --good-back: #e3f5ea; --bad: #a3400a; --bad-back: #fdeee0;
  --s0: #2a78d6; --s1: #1baf7a; --s2: #eda100; --s3: #7a4fc9; --s4: #d64a7c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10151b; --card: #181f27; --ink: #e6ebf0; --soft: #9aa7b4; --edge: #2a333d;
    --grid: #262f39; --code: #10161d;
    --good: #5fd39a; --good-back: #12321f; --bad: #ffb27a; --bad-back: #3b2412;
    --s0: #4c95ea; --s1: #27b583; --s2: #d99a1c; --s3: #a384ee; --s4: #e56f9a;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 56px; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 14px; margin-bottom: 20px; }
h1 { margin: 0; font-size: 26px; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { margin: 0 0 10px; font-size: 15px; }
.badge { padding: 3px 12px; border-radius: 999px; font-weight: 600; font-size: 14px; }
.good { color: var(--good); background: var(--good-back); }
.bad { color: var(--bad); background: var(--bad-back); }
.when { flex-basis: 100%; color: var(--soft); font-size: 14px; }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 16px 18px; min-width: 0; }
.stack > .card, .grid { margin-bottom: 16px; }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 24px; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; font-size: 13px; white-space: nowrap; }
th, td { text-align: right; padding: 6px 12px; border-bottom: 1px solid var(--grid); vertical-align: middle; }
th:first-child, td:first-child, .words { text-align: left; }
th:first-child, td:first-child { padding-left: 0; min-width: 11em; overflow-wrap: anywhere; }
th:last-child, td:last-child { padding-right: 0; }
tbody tr:last-child td { border-bottom: 0; }
.words { min-width: 16em; overflow-wrap: anywhere; }
ul { margin: 0; padding-left: 20px; overflow-wrap: anywhere; }
pre { margin: 6px 0 0; padding: 10px 12px; background: var(--code); border-radius: 6px; font-size: 13px; }
pre { overflow-x: auto; }
.note { margin: 8px 0 0; color: var(--soft); font-size: 13px; }
svg { display: block; }
.chart { width: 100%; min-width: 420px; height: auto; }
.spark { margin-left: auto; }
.axis { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.rule { stroke: var(--grid); stroke-width: 1; }
.line { fill: none; stroke: var(--s0); stroke-width: 1.75; stroke-linejoin: round; }
.dot { fill: var(--s0); }
.s0 { fill: var(--s0); background: var(--s0); }
.s1 { fill: var(--s1); background: var(--s1); }
.s2 { fill: var(--s2); background: var(--s2); }
.s3 { fill: var(--s3); background: var(--s3); }
.s4 { fill: var(--s4); background: var(--s4); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; list-style: none; padding: 0; margin-top: 6px; }
.legend { color: var(--soft); font-size: 13px; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
summary { cursor: pointer; font-weight: 600; }
details table { margin-top: 10px; }
@media (max-width: 560px) {
  main { padding: 18px 12px 40px; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 8px; }
}
@media print { .card { break-inside: avoid; } }
"""
