"""The part of OpenAPI v3 that custom resources use: what is wrong with a schema, and what a schema refuses.

As kube-apiserver does it (apiextensions-apiserver, 1.20 to today), for what deploy/kubernetes/crds has; a keyword that is not
known here is refused. tests/kubernetes/test_control_plane.py asks a real API server the same questions.
"""
import copy
import re

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
VALUES = {"enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "minProperties", "maxProperties", "required"}
JUNCTORS = {"allOf", "anyOf", "oneOf", "not"}
STRUCTURE = {"type", "properties", "additionalProperties", "items", "description", "default", "nullable", "format"}
EXTENSIONS = {"x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations"}


def children(schema, path=""):
    """(path, schema) of everything below, itself first."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from children(part, f"{path}.{name}".lstrip("."))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from children(schema["additionalProperties"], path + ".*")
    if "items" in schema:
        yield from children(schema["items"], path + "[]")


def structural(schema):
    """What keeps a schema from being structural, or leaves something without a bound."""
    wrong = []
    for path, part in children(schema):
        def fail(words, where=path):
            wrong.append(f"{where or 'the schema'}: {words}")

        if unknown := part.keys() - VALUES - JUNCTORS - STRUCTURE - EXTENSIONS:
            fail("has " + ", ".join(sorted(unknown)))
        if part.get("type") not in TYPES:
            fail("has no type")
        if "properties" in part and "additionalProperties" in part:
            fail("has properties and additionalProperties")
        if "pattern" in part:
            try:
                re.compile(part["pattern"])
            except re.error as error:
                fail(f"has a pattern that is none: {error}")
        for name in part.get("required", []):
            if name not in part.get("properties", {}):
                fail(f"requires {name}, which it does not describe")
        for junctor in JUNCTORS & part.keys():
            alternatives = part[junctor] if isinstance(part[junctor], list) else [part[junctor]]
            for alternative in alternatives:
                if found := [key for _, node in children(alternative) for key in node.keys() & (STRUCTURE | EXTENSIONS) - {"properties", "items"}]:
                    fail(f"has {', '.join(sorted(found))} inside {junctor}")
                for name in [*alternative.get("required", []), *alternative.get("properties", {})]:
                    if name not in part.get("properties", {}):
                        fail(f"speaks of {name} inside {junctor}, which it does not describe")
        if part.get("x-kubernetes-list-type") == "map":
            entry = part.get("items", {})
            for key in part.get("x-kubernetes-list-map-keys", []) or fail("is a list of type map without keys") or []:
                if key not in entry.get("required", []) and "default" not in entry.get("properties", {}).get(key, {}):
                    fail(f"has the key {key}, which entries need not have")
        if "default" in part:
            for where, words in refused(part, with_defaults(part, copy.deepcopy(part["default"]))):
                fail(f"has a default that is refused: {where} {words}")
        if path == "metadata":
            if part.keys() - {"type", "properties"} or part.get("properties", {}).keys() - {"name", "generateName"}:
                fail("says more than what name and generateName may be")
        elif not path.startswith("metadata") and path not in ("apiVersion", "kind"):
            wrong += unbounded(path, part)
    return wrong


def unbounded(path, part):
    kind = part.get("type")
    if "enum" in part or part.get("format") == "date-time":
        return []
    lacks = {"string": {"maxLength"}, "array": {"maxItems"}, "integer": {"minimum"}}.get(kind, set()) - part.keys()
    if kind == "integer" and path.startswith("spec"):
        lacks |= {"maximum"} - part.keys()
    if kind == "object" and "additionalProperties" in part:
        lacks |= {"maxProperties"} - part.keys()
    # An exit code may be any number.
    return [f"{path}: has no {name}" for name in sorted(lacks) if not path.endswith("lastExitCode") and not path.endswith("runAsUser")]


def with_defaults(schema, value):
    """As the API server keeps it: defaults filled in, from the outside to the inside."""
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name not in value and "default" in part:
                value[name] = copy.deepcopy(part["default"])
            if name in value:
                with_defaults(part, value[name])
    elif isinstance(value, list) and "items" in schema:
        for entry in value:
            with_defaults(schema["items"], entry)
    return value


def refused(schema, value, path=""):
    """[(path, why)] of all that the schema refuses. Fields that it does not know are pruned, and are among it here."""
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [(path, f"is no {kind}")]
    found = []

    def require(holds, why):
        if not holds:
            found.append((path, why))

    require("enum" not in schema or value in schema["enum"], f"is none of {schema.get('enum')}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        require(value >= schema.get("minimum", value), f"is below {schema.get('minimum')}")
        require(value <= schema.get("maximum", value), f"is above {schema.get('maximum')}")
    if isinstance(value, str):
        require(len(value) >= schema.get("minLength", 0), "is too short")
        require(len(value) <= schema.get("maxLength", len(value)), "is too long")
        # $ is the very end, as in RE2.
        require("pattern" not in schema or re.search(re.sub(r"\$$", r"\\Z", schema["pattern"]), value), "is not of the form")
    if isinstance(value, list):
        require(len(value) >= schema.get("minItems", 0), "has too few")
        require(len(value) <= schema.get("maxItems", len(value)), "has too many")
        keys = [tuple(entry.get(key) for key in schema.get("x-kubernetes-list-map-keys", [])) for entry in value if isinstance(entry, dict)]
        require(schema.get("x-kubernetes-list-type") != "map" or len(set(keys)) == len(keys), "has a key twice")
        for number, entry in enumerate(value):
            found += refused(schema.get("items", {}), entry, f"{path}[{number}]")
    if isinstance(value, dict):
        require(len(value) >= schema.get("minProperties", 0), "has too few")
        require(len(value) <= schema.get("maxProperties", len(value)), "has too many")
        for name in schema.get("required", []):
            if name not in value:
                found.append((f"{path}.{name}".lstrip("."), "is missing"))
        found += refused_fields(schema, value, path)
    for junctor, enough in (("allOf", lambda good, every: good == every), ("anyOf", lambda good, _: good > 0),
                            ("oneOf", lambda good, _: good == 1)):
        if junctor in schema:
            good = sum(not refused(part, value, path) for part in schema[junctor])
            require(enough(good, len(schema[junctor])), f"holds {good} of {junctor}")
    require("not" not in schema or refused(schema["not"], value, path), "is what it must not be")
    return found


def refused_fields(schema, value, path):
    found = []
    for name, entry in value.items():
        where = f"{path}.{name}".lstrip(".")
        if name in schema.get("properties", {}):
            found += refused(schema["properties"][name], entry, where)
        elif isinstance(schema.get("additionalProperties"), dict):
            found += refused(schema["additionalProperties"], entry, where)
        elif not schema.get("x-kubernetes-preserve-unknown-fields") and "type" in schema and path != "metadata":
            found.append((where, "is not known"))
    return found
