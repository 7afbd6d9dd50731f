"""Small templates for make_chat_templates.py: one point of Jinja's semantics each. Not here, since
Pith refuses them: integers of more than 64 bits, printing of views, iterators and functions, and
str.format."""

CONTEXT = {
    "s": "Hello, World", "u": "Größe 漢字 🚀 ǆ ß", "e": "", "sp": " \t two  words\n ", "n": 7, "z": 0,
    "f": 2.5, "big": 1e20, "yes": True, "no": False, "nil": None, "xs": [3, 1, 2],
    "d": {"b": 2, "a": 1, "items": "mine", "n": None, "Zed": [1, "two", None, True, 0.1]},
    "msgs": [{"role": "user", "content": "x", "w": {"k": 2}}, {"role": "tool", "content": "y"},
             {"role": "user", "content": None}],
    "lines": "one\n\n two\nthree", "json": "{\"k\": [1, 2.5, \"é\"], \"a\": null}", "names": ["b", "A", "c", "a"],
    "q": "it's \"so\" \\ \n\t\x01\u200b",
}

EXPRESSIONS = """
1 + 2 * 3 - 4 | -2**2 | 2**3**2 | 7 // 2 | -7 // 2 | 7 % 3 | -7 % 3 | 7 / 2 | 1 / 2 | 2 ** -1 | 7.5 // 2
-7.5 % 2
1 ~ 2 ~ 'x' | 1 ~ 2 + 3 | 'a' + 'b' ~ 'c' | 'a' + 1 | 'ab' * 3 | 3 * 'ab' | [1] * 2 + [3] | 'x' * -1
n / z | n % z | 9223372036854775806 + 1 | 4611686018427387903 * 2 | 2 ** 62
1 < 2 < 3 | 1 < 2 > 3 | 1 == 1.0 | true == 1 | 'a' < 'b' | 'a' < 1 | [1, 2] < [1, 3] | none == none
nope == nope2
1 in xs | 9 not in xs | 'ell' in s | 'a' in d | 'items' in d | 1 in s | 1 in nope | nil in [none] | 'x' in 5
not yes | not not n | yes and n | no and n | no or n | e or nil | nil or 'x' | not e and 1 | 1 if yes else 2
1 if no | 'a' if no else 'b' if yes else 'c'
s.upper() | s.lower() | u.upper() | u.lower() | u.title() | s.title() | 'hELLO wORLD'.capitalize()
u|capitalize | u|title
s[0] | s[-1] | s[99] | u[3] | u[-1] | u[0:4] | u[::-1] | s[1:5] | s[-5:] | s[:-1] | s[::2] | s[5:2] | s[10:1:-3]
xs[::-1] | xs[1:] | xs[-1] | xs[5] | (1, 2, 3)[1:] | s[1:2:0] | n[0] | xs['a'] | nope[0] | nope.x | d.nope
d.nope.x
d.a | d['items'] | d['nope'] | d.get('a') | d.get('zz') | d.get('zz', 5) | d.items()|list | d.keys()|list
d.values()|list | d.items is callable | d['items'] is string
d|items|list | nope|items|list | s|items|list | d|length | xs|length | u|length | nope|length | n|length
nil|length | d|list | s|list | nope|list
d|dictsort | d|dictsort(true) | {'x': 2, 'y': 1}|dictsort(by='value')
{'x': 2, 'y': 1}|dictsort(false, 'key', true)
sp|trim | sp.strip() | sp.lstrip() | sp.rstrip() | 'xxaxx'.strip('x') | 'xyaxy'|trim('xy') | sp.split()
'a b '.split() | 'a b '.split(' ') | 'a,b,c'.split(',', 1) | 'a,b,c'.rsplit(',', 1) | ''.split() | ''.split(',')
' a  b c '.split(none, 1) | s.split('') | lines.splitlines() | 'a\r\nb\n'.splitlines(true)
s.startswith('He') | s.endswith('ld') | s.startswith(('x', 'H')) | s.startswith(1) | s.find('o') | u.find('字')
s.rfind('o') | s.find('zz') | s.count('l') | s.replace('l', 'L') | s.replace('l', 'L', 1) | s|replace('o', '0')
s|replace('o', '0', 1) | 'abc'.replace('', '-') | 'a.b'.removeprefix('a.') | 'a.b'.removesuffix('.b')
'-'.join(names) | '-'.join(xs) | names|join(', ') | xs|join('-') | msgs|join(',', attribute='role') | xs|join
nope|join('x')
'12'.isdigit() | ''.isdigit() | '1a'.isdigit() | ' '.isspace()
nope | nope is defined | nope is undefined | s is defined | nope is none | nil is none | nil is not none
nope|default('d') | nil|default('d') | e|default('d') | e|default('d', true) | nil|default('d', true)
d.nope|default | nope or 'x' | nope ~ 'x' | nope + 'x' | nope == nil | nope|string | nope|tojson
s is string | n is string | n is number | yes is number | f is number | n is integer | yes is integer
f is float | yes is boolean | n is boolean | xs is iterable | s is iterable | d is iterable | n is iterable
xs is sequence | s is sequence | d is sequence | n is sequence | d is mapping | xs is mapping | nil is iterable
nope is iterable
1 is true | yes is true | no is false | z is false | 4 is even | 3 is odd | 6 is divisibleby 3
6 is divisibleby(4) | 3 is equalto 3 | 3 is eq(4) | 3 is ne 4 | 3 is gt 2 | 3 is ge 3 | 3 is lt 2 | 3 is le 3
1 is in xs | 1 is not in xs | 'abc' is lower | 'ABC' is upper | 'aBc' is lower | '1' is upper
1 + 1 is string | -5|abs | n|abs | f|abs | '5'|int | 'x'|int | 'x'|int(3) | '2.7'|int | 2.7|int | -2.7|int
'ff'|int(0, 16) | ' 42 '|int | nil|int | '1.5'|float | 'x'|float | 'x'|float(1.5) | 3|float | yes|int
xs|sort | xs|sort(reverse=true) | names|sort | names|sort(case_sensitive=true) | msgs|map(attribute='role')|list
msgs|map(attribute='w.k')|list | msgs|map(attribute='w.k', default=0)|list | names|map('upper')|list
names|map('upper')|join | names|unique|list | [1, 1, 2, true]|unique|list | xs|min | xs|max | []|max | names|min
names|first | names|last | []|first | s|first | xs|reverse|list | s|reverse | d|first
xs|select('odd')|list | xs|reject('odd')|list | [0, 1, '']|select|list
msgs|selectattr('role', 'equalto', 'user')|list|length | msgs|selectattr('content')|list|length
msgs|rejectattr('content')|list|length | msgs|selectattr('w', 'defined')|list|length | xs|select('gt', 1)|list
xs|map('upper')|length | xs|select|length
d|tojson | q|tojson | u|tojson | u|tojson(ensure_ascii=true) | d|tojson(indent=2)
d|tojson(indent=4, sort_keys=true) | d|tojson(separators=(',', ':')) | []|tojson(indent=2) | {}|tojson(indent=2)
[[], {}, ()]|tojson(indent=1) | (1, 2)|tojson | big|tojson | 1e400|tojson | yes|tojson | nil|tojson
'/<>&'|tojson | xs|tojson(true) | '\x7f'|tojson | '\x7fé🚀'|tojson(ensure_ascii=true)
d | xs | (1,) | () | (1, 'a') | q | [q] | ['it\\'s'] | [u] | {'a': none} | yes | nil | f | big | 1e16 | 1e15
123456789012345678.0 | 1e-5 | 0.0001 | 0.1 + 0.2 | 3.0 | -0.0 | 1e100 | [1.0, true, none]
'%s-%d' % ('a', 3) | '%5s|' % 'ab' | '%-5s|' % 'ab' | '%05d' % 42 | '%+d' % 5 | '%.2f' % 3.14159 | '%x' % 255
'%%' % () | '%s' % xs | '%s %s' % 'a' | '%d' % 'a' | '%r' % 'a' | '%s%%' % 5 | '%.3s|' % 'abcdef'
'%e' % 12345.678 | '%g' % 0.0001 | '%d' % 3.99 | '%s' % (nil,) | '%s|%s'|format(1, 'b') | 'x' % 1
'%5.1f|' % 2.25
lines|indent | lines|indent(2, true) | lines|indent(2, blank=true) | lines|indent('> ') | s|string
n|string|length | xs|string | s|safe | 2.567|round(2) | 2.5|round | 3.5|round | 7|round | 2.1|round(0, 'ceil')
2.9|round(method='floor') | json|from_json | (json|from_json).k[2] | 'x'|from_json
range(3)|list | range(1, 4)|list | range(5, 0, -2)|list | range(0)|list | dict(a=1, b='x') | namespace(a=1).a
namespace(a=1).b | range(2)|length | strftime_now('%d %B %Y %H:%M') | strftime_now('%%') | raise_exception('no')
'a\\tb\\n' | 'a\\x41\\u00e9\\U0001F680' | 'a\\q' | '\\101' | "it's" | 'a' 'b' | 1_000 | 0 | 1.5e3 | 1e2
'a' "b"
[1, 2,] | {'a': 1,} | {'a': {'b': [1, {}]}} | {'a': 1, 'a': 2} | (1) | [[1], [2]][1][0] | xs.0 | d.Zed.1
[1, 2][0:1] | ((1, 2), 3)|length | {'k' ~ 1: 2}
yes|lower | n|upper | nil|upper | xs|lower | 'ẞ'|lower | 'ΑΣ'|lower | 'ŉ'|upper | 'x' is in 'xyz'
msgs[0] == msgs[0] | msgs == msgs[:] | [1] == (1,) | d == d | {'a': 1, 'b': 2} == {'b': 2, 'a': 1}
"""

STATEMENTS = [
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% if yes %}{% set y = 5 %}{% endif %}{{ y }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a, b = xs %}", "{% set s.x = 1 %}", "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }};{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for k in d %}{{ k }},{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for c in 'héy' %}{{ c }}.{% endfor %}",
    "{% for x in nope %}a{% else %}none{% endfor %}", "{% for x in n %}{% endfor %}",
    "{% for x in [] %}a{% else %}b{% endfor %}", "{% for x in nil %}a{% endfor %}",
    "{% for x in xs if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}-{% endfor %}",
    "{% for x in xs if x > 9 %}a{% else %}b{% endfor %}",
    "{% for x in xs %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ "
    "loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
    "{% for x in xs %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in xs %}{% for y in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{{ loop }}", "{% for x in xs %}{{ loop.nope }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% set z = x %}{% endfor %}{{ z }}",
    "{% macro m(a, b=2) %}[{{ a }},{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(c=2) }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}",
    "{% macro f(k) %}{{ k }}{% if k > 0 %}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro m() %} a {% endmacro %}{{ m()|trim }}{{ m() ~ '|' }}{{ m is callable }}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{% for i in xs %}{{ m(loop.index) }}{{ m(i) }}{% endfor %}",
    "{% for i in xs %}{% if true %}{% set q2 = i %}{% endif %}{{ q2 }}{% endfor %}{{ q2 }}",
    "{% set x %}a{{ n }} {% endset %}[{{ x }}]{{ x is string }}",
    "{% set x | trim | upper %} ab {% endset %}[{{ x }}]",
    "{% set y = 1 %}{% set x %}{% set y = 2 %}{{ y }}{% endset %}{{ x }}{{ y }}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}banana{% endfilter %}",
    "{% generation %}x{{ n }}{% endgeneration %}",
    "  {% if yes %}\n  a\n  {% endif %}\n b",
    "a\n  {%- if yes -%}  \n b \n{%- endif %}\n c",
    "a {%+ if yes %} b {% endif %}",
    "  {%+ if yes %}x{% endif +%}\n y",
    "{{ n }}\n{{ n }}\n",
    "{# c #}\na{#- c -#} b",
    "a\n {# c #}\n b",
    "  {# c #} b",
    "x{{- n -}} y", "x {{- n }} y {{ n -}}  z", "{% if yes -%}\n\n  a{% endif %}", "line\r\nnext\r{{ n }}\r\n",
    "{% raw %}{{ n }}{% endraw %}", "{% raw %}\n{% x %}\n{% endraw %}\ny", " {%- raw -%} {{ a }} {%- endraw -%} z",
    "{{ '}}' }}",
    "{{ {'a': {'b': 1}}.a.b }}",
    "{{ '{%' }}{{ \"%}\" }}",
    "a{% if no %}b{% elif n == 7 %}c{% else %}d{% endif %}",
    "{% if no %}1{% elif no %}2{% elif yes %}3{% endif %}", "{{ 1, 2 }}", "{{ s if yes else nope.x }}",
    "\n\n{% if yes %}\n\na\n\n{% endif %}\n\n",
    "{%- for i in xs %}\n  {{ i }}\n{%- endfor %}",
    "{{n}}{{-n}}{{ -n}}",
    "a{% set x = 1 %}\nb",
    "a  {% set x = 1 -%}  \n b",
    "{{ n }}{# {{ no }} #}{{ n }}",
    "é{{ u }}  {% if yes %}ü\n{% endif %}",
    "{{ s.nope }}",
    "{{ s.nope() }}",
    "{{ nope() }}",
    "{{ n() }}",
    "{{ d.items.x }}",
    "{{ nil.x }}",
    "{{ n.x }}|{{ n['x'] }}",
    "{% set d2 = {'items': 1} %}{{ d2['items'] }}{{ d2.items()|list }}",
    "{{ [1, 2].append(3) }}",
    "{{ d.update({}) }}",
    "{{ ''.__class__ }}", "{% set xs = xs + [4] %}{{ xs }}", "{{ xs|sort|first }}{{ (xs|sort)[0] }}",
]

SNIPPETS = [f"{{{{ {part.strip()} }}}}" for line in EXPRESSIONS.strip().splitlines()
            for part in line.split(" | ")] + STATEMENTS
