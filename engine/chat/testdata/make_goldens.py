"""Renders templates/*.jinja with Jinja2 set up as transformers sets it up, for
each case of cases.json, into goldens.json.

    python3 -m pip install jinja2==3.1.6
    python3 make_goldens.py [folder with templates and cases.json]
"""
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 3, 7, 9, 5, 2)


class Generation(jinja2.ext.Extension):
    """Marks what was trained on; renders as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def prepare(case, template):
    """What the server does before it renders: arguments become objects, and a
    developer is the system where a template knows none."""
    case = json.loads(json.dumps(case))
    for message in case["messages"]:
        if message["role"] == "developer" and "developer" not in template:
            message["role"] = "system"
        for call in message.get("tool_calls") or []:
            arguments = call["function"]["arguments"]
            if isinstance(arguments, str):
                call["function"]["arguments"] = json.loads(arguments)
    return case


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    cases = json.loads((folder / "cases.json").read_text())
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    goldens = []
    for path in sorted((folder / "templates").glob("*.jinja")):
        source = path.read_text()
        template = environment().from_string(source)
        for case in cases:
            if "templates" in case and path.stem not in case["templates"]:
                continue
            c = prepare(case, source)
            golden = {"template": path.stem, "case": case["name"]}
            try:
                golden["text"] = template.render(
                    messages=c["messages"],
                    tools=c.get("tools"),
                    documents=c.get("documents"),
                    add_generation_prompt=c.get("add_generation_prompt", True),
                    **special,
                    **c.get("chat_template_kwargs", {}),
                )
            except jinja2.exceptions.TemplateError as e:
                golden["error"] = str(e)
            except Exception as e:  # Python's own: the template is not made for this case
                golden["python_error"] = str(e)
            goldens.append(golden)
    (folder / "goldens.json").write_text(json.dumps(goldens, indent=1, ensure_ascii=False) + "\n")


main()
