"""Chat templates against Jinja2, set up as Transformers does: templates after the published formats of many models, and
pieces of the language one by one, render the same text for random conversations, or both refuse. What is in
{% generation %} blocks is the same, too, and so is what the assistant says where a template has none."""
import json
import os
import pathlib
import random
import subprocess
import sys

from support.reference import reference_python
from support.runs import Checks

HERE = pathlib.Path(__file__).resolve().parent
COUNT, SEED, PATIENCE = 150, 5, 300
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

# One part of the language each, with the white space around it.
PIECES = [
    "{{ messages|length }} {{ messages[0].role }} {{ messages[-1]['content'] }}",
    "a\n   {% if true %}\n  b {# c #}\n{% endif %}\n  {{ 1 }}\n {%+ if true %}x{% endif %}\n\n",
    "  {%- if messages %} y {% else %} n {%- endif -%}  \n z  {#- c -#}  w {{- 1 -}} \n v",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}"
    "{{ loop.length }}{{ loop.previtem is defined }}{{ loop.nextitem.role }}|{% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.content }},{% endfor %}",
    "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }}{% if loop.index > 3 %}"
    "{% break %}{% endif %}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{{ messages[0].keys()|list }}",
    "{% set x = 1 %}{% for m in messages %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    "{{ ns.q }}",
    "{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% set t %}  {{ a }} x\n{% endset %}[{{ t }}]",
    "{% macro f(a, b='d', c=none) %}({{ a }}{{ b }}{{ c }}){% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(b=2, a="
    "1)|trim }}",
    "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2.5 * 2 }} {{ -3|abs }}",
    "{{ 1 < 2 <= 2 }} {{ 1 == 1.0 }} {{ 'a' != 'b' }} {{ not 1 in [1] }} {{ 2 not in [1] }} {{ 'b' in 'abc' }}",
    "{{ (1 and 0) or 'x' }} {{ 'y' if messages else 'n' }} {{ 'y' if false }} {{ none or false }} {{ [] or {} }}",
    "{{ 'x' ~ 1 ~ none ~ true }} {{ 'ab' 'cd' }} {{ 'ab' * 2 }} {{ [1, 'a'] + [2.0, none] }} {{ (1,) }} {{ {'k"
    "': [1]} }}",
    "{{ 'a\\nb\\t\"' }} {{ \"it's\" }} {{ ['it\\'s', 'q\"', 'b\\\\n'] }} {{ '\\x41\\u00e9' }}",
    "{{ 'hello'[1:3] }} {{ 'hello'[::-1] }} {{ [1,2,3,4][-2:] }} {{ [1,2,3,4][::2] }} {{ 'hello'[-1] }} {{ [1][5] }}",
    "{{ ' a b '.strip() }}|{{ 'xxay'.lstrip('x') }}|{{ 'ayy'.rstrip('y') }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  "
    "b '.split() }}",
    "{{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(("
    "'x', 'c')) }}",
    "{{ 'aXb'.upper() }} {{ 'aXb'.lower() }} {{ 'ab cd'.title() }} {{ 'ab'.capitalize() }} {{ 'aab'.replace('a"
    "', 'b') }}",
    "{{ 'aab'|replace('a', 'b', 1) }} {{ 'aab'.count('a') }} {{ '-'.join(['a', 'b']) }} {{ 'a' is string }}",
    "{{ '  x '|trim }}|{{ 'x'|upper }}|{{ 'X y'|title }}|{{ 'X y'|capitalize }}|{{ 'X'|lower }}|{{ [3,1]|first"
    " }}|{{ [3,1]|last }}",
    "{{ [1,2]|join(', ') }} {{ messages|map(attribute='role')|join('+') }} {{ ['a']|map('upper')|list }} {{ 'a"
    "b'|list }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|rejectattr('role', 'in', ['u"
    "ser'])|list|length }}"
    " {{ [0, 1, 2]|select|list }} {{ [1, 2, 3]|reject('even')|list }} {{ messages|selectattr('tool_calls')|list }}",
    "{{ messages|tojson }} {{ messages[0]|tojson(indent=2) }} {{ {'a': [], 'b': {}, 'c': 1.5}|tojson(indent=4)"
    " }} {{ 'é\\n<'|tojson }}",
    "{{ q is defined }} {{ messages is defined }} {{ q|default('d') }} {{ ''|d('e', true) }} {{ q }} {{ messag"
    "es[0].q }}",
    "{{ 1 is number }}{{ true is number }}{{ true is integer }}{{ 1 is integer }}{{ 1.0 is float }}{{ [] is sequence }}"
    "{{ {} is mapping }}{{ 'a' is iterable }}{{ none is none }}{{ false is false }}{{ 3 is odd }}{{ 4 is divis"
    "ibleby 2 }}"
    "{{ 'a' is in ['a'] }}{{ 1 is eq 1 }}{{ true is boolean }}{{ range is callable }}",
    "{{ range(3)|list }} {{ range(1, 10, 3)|list }} {{ range(3, 0, -1)|list }} {{ dict(a=1) }} {{ '5'|int + 1 "
    "}} {{ 'x'|int }} {{ 3.7|int }}",
    "{{ tools is none }} {{ add_generation_prompt }} {{ documents }} {{ bos_token + eos_token }} {{ pad_token "
    "is defined }}",
    "{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\nb'|indent(width=1) }}|{{ [1,2]|reverse|list "
    "}}|{{ 'ab'|reverse }}",
    "{{ messages[0].get('role') }} {{ messages[0].get('q') }} {{ messages[0].get('q', 7) }} {{ messages[0]|ite"
    "ms|list }}",
    "{{ 1e }}", "{{ q.r }}", "{{ 1 + 'a' }}", "{{ 1 < none }}", "{{ none|length }}", "{% endfor %}", "{% if true %}",
    "{{ 'a'.nothing() }}", "{{ [1].append(2) }}", "{{ raise_exception('no: ' + messages[0].role) }}", "{{ 'a }"
    "}", "{{ f(1) }}",
    "{{ messages|nofilter }}", "{{ 1 is notest }}", "{{ (1 }}", "{{ 'a'|replace('b') }}", "{% set messages.x = 1 %}",
]
# Templates that Jinja2 takes and Espalier refuses, never in silence. One of them comes up with contents that are
# lists, which templates without a loop over parts would print as Python writes lists.
ON_PURPOSE = "letters beyond ASCII"
REFUSED = ["{% raw %}x{% endraw %}", "{% include 'x' %}", "{{ 'ä'|upper }}", "{{ ['ä'] }}", "{{ 2 ** 3 }}",
           "{{ '%s' % 3 }}", "{{ [2, 1]|sort }}", "{{ 'a'.format(1) }}", "{% call f() %}{% endcall %}",
           "{{ messages|map(attribute='role') }}", "{% with x = 1 %}{% endwith %}", "{{ {1: 2} }}", "{{ [1]|random }}"]


def conversation(draw):
    """Conversations of people and models, with or without a system message, tools, lists of parts and odd orders."""
    words = ["Hello", " there", "\n", "  ", "<tag>", "\"quote\"", "it's", "é", "中文", "😀", "{{ x }}", "a\\b",
             "</think>", "<think>", "1234", "\t", "|", "’"]
    text = lambda: "".join(draw.choice(words) for _ in range(draw.randint(0, 8)))
    messages = [{"role": "system", "content": text()}] if draw.random() < 0.4 else []
    for _ in range(draw.randint(1, 3)):
        messages += [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
    if draw.random() < 0.2:
        call = {"name": "f", "arguments": {"x": draw.choice([1, 2.5, None, True, text()]), "y": [text()]}}
        messages[-1] = {"role": "assistant", "content": text(), "tool_calls": [{"type": "function", "function": call}]}
        messages += [{"role": "tool", "content": text()}, {"role": "assistant", "content": text()}]
    if draw.random() < 0.1:
        draw.choice(messages)["content"] = [{"type": "text", "text": text()}]
    if draw.random() < 0.1:
        draw.shuffle(messages)
    if draw.random() < 0.2:
        messages.pop()
    conversation = {"messages": messages or [{"role": "user", "content": ""}]}
    if draw.random() < 0.15:
        function = {"name": "f", "description": text(), "parameters": {}}
        conversation["tools"] = [{"type": "function", "function": function}]
    return conversation


def questions():
    draw = random.Random(SEED)
    templates = [(p.stem, p.read_text()) for p in sorted((HERE / "templates").glob("*.jinja"))]
    for name, source in templates:
        for k in range(COUNT):
            yield {"name": name, "template": source, "tokens": TOKENS, "object": conversation(draw), "mark": k % 2 == 0}
    for source in PIECES:
        for _ in range(4):
            yield {"name": source, "template": source, "tokens": TOKENS, "object": conversation(draw), "mark": False}


# In a Python that has Jinja2.

def answers():
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """Notes what a {% generation %} block renders."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_mark", [])
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _mark(self, caller):
            return f"\ue000{caller()}\ue001"

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda x, **options: json.dumps(x, **{"ensure_ascii": False, **options})

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    environment.globals["raise_exception"] = refuse

    def render(question, messages, prompts):
        text = environment.from_string(question["template"]).render(
            messages=messages, tools=question["object"].get("tools"), documents=None, add_generation_prompt=prompts,
            **question["tokens"])
        return text.encode()

    def spans(text):
        found, plain = [], b""
        for k, part in enumerate(text.replace("\ue001".encode(), "\ue000".encode()).split("\ue000".encode())):
            if k % 2 and part:
                found.append([len(plain), len(plain) + len(part)])
            plain += part
        return plain, found

    def by_prefixes(question, whole):
        messages, found = question["object"]["messages"], []
        for k, message in enumerate(messages):
            if message["role"] == "assistant":
                begin, end = render(question, messages[:k], True), render(question, messages[:k + 1], False)
                if not whole.startswith(begin) or not whole.startswith(end):
                    raise ValueError("no prefix")
                if len(begin) < len(end):
                    found.append([len(begin), len(end)])
        return found

    def answer(question):
        try:
            text, found = spans(render(question, question["object"]["messages"], False))
            if question["mark"] and "generation " not in question["template"]:
                found = by_prefixes(question, text)
            return {"text": text.decode(), "spans": found if question["mark"] else []}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))))


def asked(command, lines):
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def main():
    checks = Checks()
    asking = list(questions())
    lines = "".join(json.dumps(q) + "\n" for q in asking)
    ours = asked([os.environ["RENDER_CHAT"]], lines)
    theirs = asked([reference_python("formats"), __file__, "--jinja2"], lines)
    unlike = {}
    for question, a, b in zip(asking, ours, theirs, strict=True):
        if a != b and not ("error" in a and "error" in b) and ON_PURPOSE not in a.get("error", ""):
            unlike.setdefault(question["name"], []).append((question["object"], a, b))
    for name in dict.fromkeys(q["name"] for q in asking):
        shown = f"; {len(unlike[name])} differ, first {unlike[name][0]}" if name in unlike else ""
        checks.that(name not in unlike, f"{name!r} renders as in Jinja2{shown}")
    refused = asked([os.environ["RENDER_CHAT"]], "".join(
        json.dumps({"template": source, "tokens": {}, "object": {"messages": [{"role": "user"}]}, "mark": False}) + "\n"
        for source in REFUSED))
    for source, answer in zip(REFUSED, refused, strict=True):
        checks.that("template:1: " in answer.get("error", ""), f"{source!r} is refused: {answer}")
    rendered = sum("text" in b for b in theirs)
    checks.that(rendered > len(theirs) / 2, f"{rendered} of {len(theirs)} conversations are rendered")
    checks.finish()


if sys.argv[1:] == ["--jinja2"]:
    answers()
else:
    main()
