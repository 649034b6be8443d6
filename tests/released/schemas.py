"""The form of what is on disk: SQLite files and PostgreSQL tables, as text."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg


def sqlite_lines(folder: Path) -> list[str]:
    """Every SQLite file below a folder: its versions and what it declares, without what SQLite makes by itself."""
    found: list[str] = []
    for path in sorted(folder.rglob("*.db")):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            found.append(f"=== {path.relative_to(folder)}")
            for pragma in ("user_version", "application_id", "auto_vacuum", "encoding", "journal_mode"):
                found.append(f"{pragma} = {database.execute(f'PRAGMA {pragma}').fetchone()[0]}")
            shadows = {row[1] for row in database.execute("PRAGMA table_list") if row[2] == "shadow"}
            declared = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
            for kind, name, table, sql in declared:
                if table not in shadows:
                    found.append(f"{kind} {name}: {_one_line(sql) if sql else '(made by SQLite)'}")
    return found


def _one_line(sql: str) -> str:
    text = re.sub(r"--[^\n]*", " ", sql)
    return re.sub(r"\s*([(),])\s*", r"\1 ", re.sub(r"\s+", " ", text)).strip()


_QUERIES = {
    "schemas": "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)' ORDER BY 1",
    "columns": (
        "SELECT table_schema || '.' || table_name, ordinal_position, column_name, data_type, is_nullable,"
        " column_default, is_identity, identity_generation, generation_expression FROM information_schema.columns"
        " WHERE table_schema !~ '^(pg_|information_schema)' ORDER BY 1, 2"
    ),
    "constraints": (
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid <> 0 AND connamespace::regnamespace::text !~ '^(pg_|information_schema)'"
        " AND contype <> 'n' ORDER BY 1, 2"
    ),
    "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname !~ '^(pg_|information_schema)' ORDER BY 1",
    "options": (
        "SELECT oid::regclass::text, relkind, relpersistence, array_to_string(reloptions, ' ') FROM pg_class"
        " WHERE relnamespace::regnamespace::text !~ '^(pg_|information_schema)' AND relkind IN ('r', 'p', 'S', 'v')"
        " ORDER BY 1"
    ),
    "functions": (
        "SELECT oid::regprocedure::text, md5(prosrc) FROM pg_proc"
        " WHERE pronamespace::regnamespace::text !~ '^(pg_|information_schema)' ORDER BY 1"
    ),
    "triggers": "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1",
}


async def postgres_lines(url: str) -> list[str]:
    """Return the declarations of a database, without those that PostgreSQL brings."""
    found: list[str] = []
    connection = await asyncpg.connect(url)
    try:
        for topic, query in _QUERIES.items():
            found.append(f"=== {topic}")
            rows = await connection.fetch(query)
            cells = [" | ".join("" if cell is None else _text(cell) for cell in row.values()) for row in rows]
            # A partition for each day: all have one form.
            found += dict.fromkeys(re.sub(r"_20\d{6}\b|_20\d{6}(?=_)", "_<day>", line) for line in cells)
        found.append("=== version")
        tables = await connection.fetch(
            "SELECT table_schema, table_name FROM information_schema.columns WHERE column_name = 'version'"
            " AND table_schema !~ '^(pg_|information_schema)' ORDER BY 1, 2"
        )
        for schema, table in (row.values() for row in tables):
            for row in await connection.fetch(f'SELECT version FROM "{schema}"."{table}"'):
                found.append(f"{schema}.{table}.version = {row['version']}")
    finally:
        await connection.close()
    return found


def _text(cell: object) -> str:
    return cell.decode() if isinstance(cell, bytes) else str(cell)
