"""The OpenAPI document of a route table."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel

from turnwire.server.router import AnyRoute, Json, Parameter, Route, response

_SCHEMAS = "#/components/schemas/{model}"
_DESCRIPTION = "Run your AI agent's answers on the server, and stream them to any client without losing an event."
_OBJECT = {"type": "object", "additionalProperties": True}
_ERROR = response(
    "An error, in the shape of the protocol that the route speaks; here in Turnwire's own",
    "application/json",
    {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            }
        },
    },
)
_FORM = {
    "type": "object",
    "required": ["file"],
    "properties": {"file": {"type": "string", "contentMediaType": "application/octet-stream"}},
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


def build_document(routes: Iterable[AnyRoute], version: str) -> Json:
    """Return the OpenAPI document of all routes that have a tag."""
    paths: dict[str, Json] = {}
    schemas: Json = {}
    for route in routes:
        if not route.tag:
            continue
        path = route.path.replace(":path}", "}")
        if isinstance(route, Route):
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, schemas)
        else:
            paths.setdefault(path, {})["get"] = {
                "operationId": _operation_id("GET", path),
                "tags": [route.tag],
                "summary": route.summary,
                "responses": _responses({"101": response("A WebSocket")}),
            }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Turnwire", "version": version, "description": _DESCRIPTION},
        "paths": paths,
        "components": {"schemas": schemas, "responses": {"Error": _ERROR}, "securitySchemes": _KEYS},
        # A server without keys needs none.
        "security": [{}, *({name: []} for name in _KEYS)],
    }


def _operation_id(method: str, path: str) -> str:
    name = f"{method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', path)}".rstrip("_")
    return f"{name}_slash" if path.endswith("/") else name


def _operation(route: Route, path: str, schemas: Json) -> Json:
    is_empty = route.status == 204
    default = response("Nothing") if is_empty else response("The answer", "application/json", _OBJECT)
    operation: Json = {
        "operationId": _operation_id(route.method, path),
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": [*_parameters(route, path)],
        "responses": _responses(route.responses or {str(route.status): default}),
    }
    if route.max_upload_bytes is not None:
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}
    elif route.body is not None:
        _add_schema(schemas, route.body)
        content = {"application/json": {"schema": {"$ref": _SCHEMAS.format(model=route.body.__name__)}}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _responses(responses: Any) -> Json:
    return {**responses, "default": {"$ref": "#/components/responses/Error"}}


def _parameters(route: Route, path: str) -> Iterator[Json]:
    described = {parameter.name for parameter in route.parameters}
    for name in _PATH_PARAMETER.findall(path):
        if name not in described:
            yield _parameter(Parameter(name, "path", ""))
    yield from map(_parameter, route.parameters)
    if route.query is not None:
        for name, schema in route.query.model_json_schema()["properties"].items():
            schema.pop("title", None)
            description = schema.pop("description", "")
            yield {**_parameter(Parameter(name, "query", description)), "schema": schema}


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.location,
        "required": parameter.location == "path",
        **({"description": parameter.description} if parameter.description else {}),
        "schema": {"type": "string"},
    }


def _add_schema(schemas: Json, model: type[BaseModel]) -> None:
    schema = model.model_json_schema(by_alias=True, ref_template=_SCHEMAS)
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
