"""The OpenAPI document of the routes that are not FastAPI's, from their declarations."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from turnwire.server.router import AnyRoute, Parameter, Route, response

_SCHEMAS = "#/components/schemas/{model}"


def add_routes(document: dict[str, Any], routes: Iterable[AnyRoute]) -> dict[str, Any]:
    """Add routes, and the schemas of their bodies, to the document that FastAPI makes."""
    paths: dict[str, dict[str, Any]] = {}
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for route in routes:
        if isinstance(route, Route):
            path = route.path.replace(":path}", "}")
            paths.setdefault(path, {})[route.method.lower()] = _operation(route)
            if route.body is not None:
                _add_schema(schemas, route.body)
        elif route.summary:
            paths.setdefault(route.path, {})["get"] = {
                "tags": [route.tag],
                "summary": route.summary,
                "responses": {"101": response("A WebSocket")},
            }
    document["paths"] = paths | document["paths"]
    return document


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": [_parameter(parameter) for parameter in route.parameters],
        "responses": dict(route.responses),
    }
    if route.body is not None:
        schema = {"$ref": _SCHEMAS.format(model=route.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.location,
        "required": parameter.location == "path",
        "description": parameter.description,
        "schema": {"type": "string"},
    }


def _add_schema(schemas: dict[str, Any], model: type[BaseModel]) -> None:
    schema = model.model_json_schema(by_alias=True, ref_template=_SCHEMAS)
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
