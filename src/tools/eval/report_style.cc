#include "tools/eval/report_parts.h"

namespace pith {

// Colours: text on ground at least 7 to 1, markers at least 3 to 1, in both themes. Families differ
// in shape too.
const std::string_view kReportStyle = R"css(
:root{color-scheme:light dark;--ground:#fdfdfb;--card:#fff;--ink:#1b1f24;--soft:#565e68;
--rule:#d9dcd6;--grid:#ecece6;--c0:#3a3f46;--c1:#1769c4;--c2:#b45309;--c3:#0f7b52;--front:#8b3fb0;
--heat:224,108,40}
@media(prefers-color-scheme:dark){:root{--ground:#14171a;--card:#1b1f23;--ink:#e9ecef;
--soft:#a5aeb8;--rule:#343b42;--grid:#272d33;--c0:#c9ced4;--c1:#6db1ff;--c2:#f2a65a;--c3:#5fd0a0;
--front:#d59bf0;--heat:196,84,24}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:1rem;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.2rem;line-height:1.3;margin:2.2rem 0 .3rem;padding-top:.8rem;
border-top:1px solid var(--rule)}
p{margin:.4rem 0;max-width:46rem}
.soft,figcaption{color:var(--soft)}
.facts{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0;padding:0;list-style:none}
.facts li{background:var(--card);border:1px solid var(--rule);border-radius:.5rem;
padding:.5rem .8rem}
.facts b{display:block;font-size:1.15rem;font-variant-numeric:tabular-nums}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.5rem 0;padding:0;list-style:none}
nav a{display:inline-block;padding:.3rem 0}
a{color:var(--c1)}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:1rem}
figure{margin:.6rem 0 0;background:var(--card);border:1px solid var(--rule);border-radius:.5rem;
padding:.7rem;min-width:0}
figure>svg{display:block;width:100%;max-width:560px;height:auto;margin:0 auto}
figure h3{font-size:1rem;margin:0 0 .3rem}
figcaption{font-size:.85rem}
figcaption ol{margin:.4rem 0 0;padding-left:1.7rem}
figcaption li{margin:.12rem 0;overflow-wrap:anywhere}
figcaption span{white-space:nowrap}
figcaption li b{color:var(--ink);font-weight:600}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
fill:var(--soft)}
svg .label{font-size:11.5px;fill:var(--ink)}
svg .number{font-size:11px;font-weight:700;fill:var(--ink)}
.grid{stroke:var(--grid);fill:none}
.axis{stroke:var(--soft);fill:none}
.lead{stroke:var(--soft);stroke-width:.6;fill:none}
.line{fill:none;stroke-width:1.6}
.line.front{stroke:var(--front);stroke-dasharray:4 3}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}
.line.c0{stroke:var(--c0);fill:none}.line.c1{stroke:var(--c1);fill:none}
.line.c2{stroke:var(--c2);fill:none}.line.c3{stroke:var(--c3);fill:none}
.bar{fill:none;stroke-width:1}.bar.c0{stroke:var(--c0)}.bar.c1{stroke:var(--c1)}
.bar.c2{stroke:var(--c2)}.bar.c3{stroke:var(--c3)}
.faint{opacity:.55}
.key{width:.85em;height:.85em;vertical-align:-.08em;margin-right:.3em}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.4rem 0;padding:0;list-style:none;
font-size:.9rem}
.wide{overflow-x:auto;margin:.6rem 0;border:1px solid var(--rule);border-radius:.5rem;
background:var(--card)}
.wide:focus-visible{outline:2px solid var(--c1)}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
.caption{color:var(--soft);font-size:.85rem;margin:.8rem 0 0}
th,td{padding:.3rem .6rem;text-align:right;white-space:nowrap;border-top:1px solid var(--grid)}
thead th{vertical-align:bottom;color:var(--soft);font-weight:600;white-space:normal;
min-width:4.2rem}
th:first-child{text-align:left;position:sticky;left:0;background:var(--card);white-space:normal;
min-width:9.5rem;max-width:20rem;font-weight:500;overflow-wrap:break-word;z-index:1}
tr.best th:first-child{font-weight:700}
tbody th:first-child,figcaption b,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,
"DejaVu Sans Mono",monospace;font-size:.8rem}
td.heat{min-width:3.4rem;background:rgba(var(--heat),var(--v));text-align:center}
details{margin:.6rem 0}
summary{cursor:pointer;padding:.35rem 0;color:var(--c1)}
@media(min-width:800px){th:first-child{min-width:19rem;max-width:26rem}}
@media(max-width:480px){body{padding:.7rem}th:first-child{min-width:7.5rem;max-width:9rem}
th,td{padding:.3rem .45rem}figure{padding:.5rem}}
@media print{details>*{display:block}.wide{overflow:visible}}
)css";

}  // namespace pith
