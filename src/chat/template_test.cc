// The engine beyond what Jinja2 says: marks, limits, messages, and values that never crash.

#include "chat/template.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <random>

namespace pith::chat {
namespace {

using Variables = std::map<std::string, Value, std::less<>>;

std::tm some_time() { return {}; }

Text render(const std::string& source, const char* json = "{}") {
  Variables variables;
  const auto parsed = read_json(json);
  for (const auto& [name, value] : parsed.value().dict()->items)
    variables[name.text()->bytes()] = value;
  return Template(source, "test").render(std::move(variables), some_time);
}

/// The bytes with data in «».
std::string marked(const Text& text) {
  std::string out;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    const std::string part = text.bytes().substr(begin, run.end - begin);
    out += run.origin == Origin::kData ? "«" + part + "»" : part;
    begin = run.end;
  }
  return out;
}

std::string failure(const std::string& source, ErrorCode code, const char* json = "{}") {
  try {
    const Text text = render(source, json);
    ADD_FAILURE() << source.substr(0, 200) << " rendered " << text.size() << " bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

TEST(ChatMarks, EveryOperationKeepsThem) {
  const char* json = R"({"s": "Ab c", "xs": ["x", "y"], "d": {"k": "v"}, "n": 5})";
  const std::pair<const char*, const char*> cases[] = {
      {"{{ 'a' + s + 'z' }}", "a«Ab c»z"},
      {"{{ ('a' ~ s)[0:2] }}", "a«A»"},
      {"{{ ('a' ~ s)[::-1] }}", "«c bA»a"},
      {"{{ (' ' ~ s ~ ' ')|trim }}", "«Ab c»"},
      {"{{ s.split(' ')|join('-') }}", "«Ab»-«c»"},
      {"{{ s|replace('b', 'B') }}", "«A»B« c»"},
      {"{{ 'a.b'.replace('.', s) }}", "a«Ab c»b"},
      {"{{ ('q' ~ s)|upper }}", "Q«AB C»"},
      {"{{ '%s|%s' % ('t', s) }}", "t|«Ab c»"},
      {"{{ s * 2 }}{{ 't' * 2 }}", "«Ab cAb c»tt"},
      {"{{ 'x'|tojson }}{{ d|tojson }}", "«\"x\"{\"k\": \"v\"}»"},
      {"{{ xs }}", "[«'x'», «'y'»]"},
      {"{% for k in d %}{{ k }}={{ d[k] }}{% endfor %}", "«k»=«v»"},
      {"{{ xs|join(s) }}", "«xAb cy»"},
      {"{% set t %}<{{ s }}>{% endset %}{{ t }}", "<«Ab c»>"},
      {"{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(s)|indent(2, true) }}", "  <«Ab c»>"},
      {"{{ n }}{{ n == 5 }}", "5True"},
      {"{{ s[0] }}{{ s|first }}{{ s|list|last }}", "«AAc»"},
  };
  for (const auto& [source, expected] : cases)
    EXPECT_EQ(marked(render(source, json)), expected) << source;
}

TEST(ChatMarks, CutAndJoinedTextsAreTheWhole) {
  rc::check("slices of a text, put together, are the text with its marks", [] {
    Text text;
    for (const bool data : *rc::gen::container<std::vector<bool>>(rc::gen::arbitrary<bool>()))
      text.append("aé漢", data ? Origin::kData : Origin::kTemplate);
    const auto cut = *rc::gen::inRange<size_t>(0, text.size() + 1);
    Text both = text.slice(0, cut);
    both.append(text.slice(cut, text.size()));
    RC_ASSERT(marked(both) == marked(text));
  });
}

TEST(ChatLimits, WhatWouldNotEndIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% for i in range(1000000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}", "steps"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deep"},
      {"{{ 'x' * 100000000 }}", "64 MiB"},
      {"{{ 'x' * 9223372036854775807 }}", "64 MiB"},
      {"{{ [1] * 100000000 }}", "steps"},
      {"{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
       "{% endfor %}",
       "64 MiB"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}"
       "{% endfor %}{{ ns.x }}",
       "levels"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}"
       "{% endfor %}{{ ns.x == ns.x }}",
       "parts"},
      {"{{ range(1000001)|length }}", "million"},
      {"{{ '%999999999d' % 1 }}", "64 MiB"},
      {"{{ 'a'|indent(999999999, true) }}", "64 MiB"},
      {"{{ ('a' * 1000000).replace('', 'b' * 1000) }}", "64 MiB"},
      {"{{ (['a'] * 100000)|join('b' * 100000) }}", "64 MiB"},
      {"{{ [1, 2]|tojson(indent=1000) * 100000000 }}", "64 MiB"},
      {"{{ (('a' * 1000000)|list|unique|list)|length }}", "steps"},
  };
  for (const auto& [source, words] : cases) {
    const auto start = std::chrono::steady_clock::now();
    const std::string why = failure(source, ErrorCode::kInvalidArgument);
    EXPECT_NE(why.find(words), std::string::npos) << source << ": " << why;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60)) << source;
  }
}

TEST(ChatLimits, DeepSourcesAreRefusedWhenRead) {
  const auto repeated = [](const char* text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  const std::string many[] = {
      "{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}",
      "{{ " + repeated("not ", 5000) + "1 }}",
      "{{ " + repeated("- ", 5000) + "1 }}",
      "{{ 1" + repeated(" + 1", 5000) + " }}",
      "{{ a" + repeated(".b", 5000) + " }}",
      "{{ a" + repeated("|trim", 5000) + " }}",
      "{{ a" + repeated("[0", 5000) + repeated("]", 5000) + " }}",
      repeated("{% if 1 %}", 5000) + repeated("{% endif %}", 5000),
      "{% if 1 %}" + repeated("{% elif 1 %}", 5000) + "{% endif %}",
      "{{ 1" + repeated(" if 1 else 1", 5000) + " }}",
  };
  for (const std::string& source : many)
    EXPECT_NE(failure(source, ErrorCode::kUnsupported).find("levels"), std::string::npos) << source;
  failure(std::string(kMaxTemplate + 1, 'x'), ErrorCode::kUnsupported);
}

// The results of Jinja2 3.1 gives in transformers' set-up.
TEST(ChatLanguage, IsJinjas) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% if false %}{{ (x|nothing(1)).more() is nothing 2 }}{{ f(x) }}{% endif %}a", "a"},
      {"{% set f = {'a': 1} %}{% set n = namespace(**f) %}{{ n.a }}{{ dict(f, b=2) }}",
       "1{'a': 1, 'b': 2}"},
      {"{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}"
       "{{ m(*[1, 3, 4], **{'z': 5}) }}",
       "13(4,){'z': 5}"},
      {"{% macro box(t) %}[{{ t }}:{{ caller('y') }}]{% endmacro %}{% for i in [7] %}"
       "{% call(z) box('x') %}{{ i }}{{ z }}{{ t }}{% endcall %}{% endfor %}",
       "[x:7y]"},
      {"{% set s = namespace(r='a') %}{% for m in [s] + [{'r': 'b'}] %}{{ m.r }}{% endfor %}",
       "ab"},
      {"{{ '<'|safe + '<&>\"' + \"'\" + '>'|e }}{{ 'a<' ~ '<'|safe }}{{ '%s'|safe % '<' }}",
       "<&lt;&amp;&gt;&#34;&#39;&gt;a<<&lt;"},
      {"{{ xs|selectattr('r', '==', 'a')|map(attribute='n')|list }}", "[1, 3]"},
      {"{% with a = 1, (b, c) = (2, 3) %}{{ a }}{{ b }}{{ c }}{% endwith %}{{ a is defined }}",
       "123False"},
      {"{{ [1, 2.5]|sum }}{{ xs|sum(attribute='n') }}{{ xs|sum('n', 10) }}", "3.5616"},
      {"{% for r, g in xs|groupby('r') %}{{ r }}{{ g|length }}{% endfor %}", "a2b1"},
      {"{{ 'one two three four'|truncate(9) }}|{{ 'one two three four'|truncate(9, true) }}|"
       "{{ 'one two'|truncate(5) }}|{{ 'onetwothreefour'|truncate(6, end='-') }}",
       "one...|one tw...|one two|onetw-"},
      {"{{ 'ab'|center(5) }}|{{ 'abc'|center(6) }}|{{ 'a b_c d'|wordcount }}", "  ab | abc  |3"},
      {"{{ [1, 2, 3]|batch(2)|list }}{{ [1, 2, 3]|batch(2, 0)|list }}",
       "[[1, 2], [3]][[1, 2], [3, 0]]"},
      {"{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "123"},
      {"{% for t in tree recursive %}{{ loop.depth }}{{ t.v }}{% if t.c %}<{{ loop(t.c) }}>{% "
       "endif %}"
       "{% endfor %}",
       "1a<2b2c>1d"},
      {"{% for x in [1, 2] %}{% macro s(y) %}{{ x }}{{ y }}{% endmacro %}{{ s(8) }}{% endfor %}",
       "1828"},
      {"{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-')[2] }}{{ 'ab'.partition('x') }}",
       "('a', '-', 'b-c')c('ab', '', '')"},
      {"{{ 'abca'.index('c') }}{{ 'abca'.rindex('a') }}{{ 'aé'.isalpha() }}{{ 'a1'.isalpha() }}"
       "{{ 'a1'.isalnum() }}{{ 'AB'.isupper() }}{{ 'ab'.islower() }}",
       "23TrueFalseTrueTrueTrue"},
      {"{{ 'a,b,,c'.rsplit(',') }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'aaaa'.rsplit('aa') }}",
       "['a', 'b', '', 'c']['a,b', 'c']['', '', '']"},
      {"{{ ('ab,' * 30000).rsplit(',')|length }}", "30001"},
      {"{{ '-5'.zfill(4) }}{{ 'a'.ljust(3, '.') }}{{ 'a'.rjust(3) }}", "-005a..  a"},
      {"{{ '{} {} {a} {{}}'.format(1, 2, a=3) }}{{ '{1}{0}'.format(1, 2) }}", "1 2 3 {}21"},
      {"{% set d = {1: 'a', 'x': 2} %}{{ d[1] }}{{ d }}{{ 1 in d }}{{ d|tojson }}",
       "a{1: 'a', 'x': 2}True{\"1\": \"a\", \"x\": 2}"},
      {"{{ 0x1F + 0b1_1 + 0o17 }}{{ '0x1f'|int(0, 16) }}{{ '-0b11'|int(base=2) }}{{ '0x'|int(7, "
       "16) }}",
       "4931-37"},
      {"{% for g in xs|groupby('r') %}{{ g.grouper }}{{ g.list|length }}{{ g[0] }}{% endfor %}",
       "a2ab1b"},
      {"{{ 1234.5678|round(-2) }} {{ 1250|round(-2) }} {{ 1350|round(-2) }} {{ 1299|round(-2, "
       "'floor') }}",
       "1200.0 1200 1400 1200.0"},
      {"{{ [1, 2, 3, 4, 5]|slice(3)|list }}{{ [1, 2, 3, 4]|slice(3, 0)|list }}",
       "[[1, 2], [3, 4], [5]][[1, 2], [3, 0], [4, 0]]"},
      {"{{ '{0}-{1:>5}-{k!r}|{:}'.replace('{:}', '').format('a', 'b', k='c') }}", "a-    b-'c'|"},
      {"{{ '{:,}|{:.2f}|{:05d}|{:x}|{:+}|{:>4}|{:*^5}|{:%}'.format(1234567, 2.5, 42, 255, 3, 'b', "
       "'c', 0.25) }}",
       "1,234,567|2.50|00042|ff|+3|   b|**c**|25.000000%"},
      {"{{ '{:5}|{:5}|{:<5}|{:.2}|{:é>3}|{:+06.1f}'.format('a', 7, 7, 'abc', 'x', -2.25) }}",
       "a    |    7|7    |ab|ééx|-002.2"},
      {"{{ '%(a)s-%(b)03d' % {'a': 1, 'b': 2} }}{{ '%(x)s'|format(x='y') }}", "1-002y"},
      {"{% for x in [1, 1, 2, 1] %}{{ loop.changed(x) }}{% endfor %}", "TrueFalseTrueTrue"},
      {"{{ 'ab'.center(5, '*') }}{{ 'a'.center(4) }}|{{ 'abc'.center(2) }}", "**ab* a  |abc"},
      {"{{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '½'.isnumeric() }}{{ '½'.isdigit() }}",
       "TrueFalseTrueFalse"},
      {"{{ {'role': 1}|attr('role') is undefined }}{{ {'a': 1}.copy() }}", "True{'a': 1}"},
      {"{{ 9999999999999999999 }}{{ [-9223372036854775809]|tojson if false }}"
       "{{ '0018446744073709551616'|int }}{{ 1e30|int }}{{ '9999999999999999999'|float }}",
       "999999999999999999918446744073709551616"
       "1000000000000000019884624838656"
       "1e+19"},
      {"{% if false %}{% include 'x' %}{% import 'y' as z %}{% from 'a' import b %}{% endif %}"
       "{% block a %}{% set c = 1 %}{{ c }}{% endblock a %}{{ c is defined }}",
       "1False"},
      {"{{ 1 is sameas 1 }}{{ 'upper' is filter }}{{ 'nope' is test }}{{ ('a'|e) is escaped }}",
       "TrueTrueFalseTrue"},
  };
  const std::string json = R"({"xs": [{"r": "a", "n": 1}, {"r": "b", "n": 2}, {"r": "a", "n": 3}],
      "tree": [{"v": "a", "c": [{"v": "b"}, {"v": "c"}]}, {"v": "d"}]})";
  for (const auto& [source, expected] : cases)
    EXPECT_EQ(render(source, json.c_str()).bytes(), expected) << source;
}

// Each took minutes, when the cost was the product of two lengths.
TEST(ChatLimits, SearchesAreLinear) {
  const char* const searches[] = {
      "{{ (('a' * 1000000) ~ 'b') in ('a' * 2000000) }}",
      "{{ ('a' * 2000000).find(('a' * 1000000) ~ 'b') }}",
      "{{ ('a' * 2000000).rfind('b' ~ ('a' * 1000000)) }}",
      "{{ ('a' * 2000000).count(('a' * 1000000) ~ 'b') }}",
      "{{ ('a' * 2000000).split(('a' * 1000000) ~ 'b')|length }}",
      "{{ ('a' * 2000000).replace(('a' * 1000000) ~ 'b', 'c')|length }}",
      "{{ ('a' * 2000000).strip(('b' * 1000000) ~ 'a')|length }}",
      "{{ ('a' * 2000000)|trim(('b' * 1000000) ~ 'a')|length }}",
  };
  for (const char* source : searches) {
    const auto start = std::chrono::steady_clock::now();
    render(source, "{}");
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << source;
  }
}

TEST(ChatErrors, NameTheLineAndTheConstruct) {
  const std::tuple<const char*, ErrorCode, const char*> cases[] = {
      {"\n{% include 'x' %}", ErrorCode::kUnsupported, "line 2: not supported: the tag 'include'"},
      {"{% call m %}{% endcall %}", ErrorCode::kCorrupt, "needs a call of a macro"},
      {"{{ x|urlize }}", ErrorCode::kUnsupported, "the filter 'urlize'"},
      {"{{ 1 is prime }}", ErrorCode::kUnsupported, "the test 'prime'"},
      {"{{ x.encode() }}", ErrorCode::kInvalidArgument, "the method 'encode' of undefined ('x')"},
      {"{{ 'a'.encode() }}", ErrorCode::kUnsupported, "the method 'encode'; supported: capitalize"},
      {"{{ [].append(1) }}", ErrorCode::kUnsupported, "the method 'append'"},
      {"a\nb{{ lipsum() }}", ErrorCode::kUnsupported,
       "line 2: not supported: the function 'lipsum'"},
      {"{{ dict(**[1]) }}", ErrorCode::kInvalidArgument, "** of a list"},
      {"{{ x|trim(a=1) }}", ErrorCode::kInvalidArgument, "has no argument 'a'"},
      {"{{ x|upper(1) }}", ErrorCode::kInvalidArgument, "at most 0 arguments"},
      {"{{ {1.5: 2} }}", ErrorCode::kUnsupported, "a float as a key"},
      {"{{ 'ab'.index('c') }}", ErrorCode::kInvalidArgument, "index of a text"},
      {"{{ '{}{0}'.format(1) }}", ErrorCode::kInvalidArgument, "numbers all its places or none"},
      {"{{ '{a.b}'.format(1) }}", ErrorCode::kUnsupported, "format of '{a.b}'"},
      {"{{ '{:d}'.format('a') }}", ErrorCode::kInvalidArgument, "a string with the spec 'd'"},
      {"{{ '{:_}'.format(1) }}", ErrorCode::kUnsupported, "the spec '_'"},
      {"{{ '{:999999999999}'.format(1) }}", ErrorCode::kInvalidArgument, "line 1"},
      {"{{ ('9' * 4301)|int }}", ErrorCode::kInvalidArgument, "more than 4300 digits"},
      {"{{ '0x8000000000000000'|int(base=16) }}", ErrorCode::kInvalidArgument, "64 bits"},
      {"{{ 9223372036854775808 + 1 }}", ErrorCode::kInvalidArgument, "64 bits"},
      {"{% if x %}", ErrorCode::kCorrupt, "'if' without 'endif'"},
      {"{% endif %}", ErrorCode::kCorrupt, "'endif' closes nothing"},
      {"{{ 1 + }}", ErrorCode::kCorrupt, "expected an expression, found the end }}"},
      {"{{ 'a }}", ErrorCode::kCorrupt, "a string without its end"},
      {"{# a", ErrorCode::kCorrupt, "a comment without its end"},
      {"{{ a", ErrorCode::kCorrupt, "a tag without its end"},
      {"{{ (1] }}", ErrorCode::kCorrupt, "']' closes nothing"},
      {"{{ a ? b }}", ErrorCode::kCorrupt, "'?' means nothing here"},
      {"{% break %}", ErrorCode::kCorrupt, "'break' outside of a loop"},
      {"{% for x in y %}{% set z %}{% break %}{% endset %}{% endfor %}", ErrorCode::kCorrupt,
       "break"},
      {"\xFF", ErrorCode::kCorrupt, "not UTF-8"},
      {"a\n\n{{ raise_exception('no system, please') }}", ErrorCode::kInvalidArgument,
       "line 3: the template refuses: no system, please"},
      {"{{ x.y }}", ErrorCode::kInvalidArgument, "'y' of undefined ('x')"},
      {"{{ none + 'a' }}", ErrorCode::kInvalidArgument, "none + a string"},
      {"{{ 9223372036854775807 + 1 }}", ErrorCode::kInvalidArgument, "64 bits"},
      {"{{ -9223372036854775807 - 2 }}", ErrorCode::kInvalidArgument, "64 bits"},
      {"{{ {'a': 1}.items() }}", ErrorCode::kUnsupported, "|list makes a list of it"},
      {"{{ 'a'.upper }}", ErrorCode::kUnsupported, "a function cannot be printed"},
      {"{% set ns = namespace() %}{{ [ns] }}", ErrorCode::kUnsupported,
       "a namespace cannot be printed"},
      {"{% set ns = namespace() %}{% set ns.a = [{'b': ns}] %}", ErrorCode::kUnsupported,
       "a namespace in a namespace"},
      {"{% set ns = namespace() %}{% for x in [ns] %}{% set ns.l = loop %}{% endfor %}",
       ErrorCode::kUnsupported, "a namespace in a namespace"},
      {"{% for x in [1] %}{{ loop.changed([loop]) }}{% endfor %}", ErrorCode::kUnsupported,
       "loop.changed of a namespace or a loop"},
  };
  for (const auto& [source, code, words] : cases) {
    const std::string why = failure(source, code);
    EXPECT_NE(why.find(words), std::string::npos) << source << ": " << why;
    EXPECT_NE(why.find("chat template 'test'"), std::string::npos) << why;
  }
}

// Whatever bytes come: an answer or an Error.
TEST(ChatErrors, ShuffledTemplatesAreReadOrRefused) {
  const std::string parts[] = {
      "{{ ",  " }}",   "{% ",    " %}",        "for ",     "x in ",   "xs",      "if ",   "else",
      "set ", "endif", "endfor", "macro m(a)", "endmacro", "m(1)",    "|tojson", "|join", "(",
      ")",    "[",     "]",      "::-1",       "{",        "}",       "'a'",     "1",     "+",
      "~",    "%",     "**",     "-",          ".",        "items()", "is ",     "not ",  "defined",
      "\n",   " ",     "{#",     "#}",         "é",        ","};
  std::mt19937 dice(7);
  int rendered = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string source;
    for (size_t i = dice() % 24; i > 0; --i) source += parts[dice() % std::size(parts)];
    try {
      render(source, R"({"xs": [1, "b", {"c": null}]})");
      ++rendered;
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kInternal) << source;
    }
  }
  EXPECT_GT(rendered, 100);
}

TEST(ChatData, IsChecked) {
  EXPECT_THROW(read_json(std::string(101, '[') + std::string(101, ']')), Error);
  EXPECT_TRUE(read_json(std::string(100, '[') + std::string(100, ']')).has_value());
  for (const char* text : {"\"\xFF\"", "\"\\ud800\"", "[1", "", "nil"})
    EXPECT_FALSE(read_json(text).has_value()) << text;
  EXPECT_EQ(to_text(read_json("18446744073709551615").value()).bytes(), "18446744073709551615");
}

}  // namespace
}  // namespace pith::chat
