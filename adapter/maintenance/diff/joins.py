"""Joins of the files on disk with the expected tables. The rows of each join are findings.

All joins are DataFrames over the Parquet files that the executors wrote; nothing is collected here. A query runs only
if the sums of its domains differ.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from adapter.maintenance.scan import fingerprint
from adapter.maintenance.scan.executor import FOREIGN
from adapter.maintenance.scan.rows import FINDING_SCHEMA
from adapter.store.folder_identity import UID_STEP

_COLUMNS = [
    f"coalesce(CAST({field.name} AS bigint), 0L) AS {field.name}"
    if field.name in ("folder", "uid")
    else f"coalesce(CAST({field.name} AS string), '') AS {field.name}"
    for field in FINDING_SCHEMA
]

_MESSAGES = """
WITH ranked AS (
  SELECT f.*, k.sha AS wanted, k.id AS known, k.name AS accepted, k.status, row_number() OVER (
    PARTITION BY f.id ORDER BY coalesce(f.sha = k.sha, false) DESC, coalesce(f.sha = k.name, false) DESC,
      f.problem = '' DESC, f.proper DESC, f.place) AS turn,
    max(f.cause <> '') OVER (PARTITION BY f.id) AS is_blocked
  FROM file_rows f LEFT JOIN table_rows k ON k.part = 'known' AND k.id = f.id
  WHERE f.part = 'message' AND f.id <> ''
)
SELECT CASE
    WHEN cause <> '' THEN 'unreadable'
    WHEN turn > 1 THEN 'message-duplicate'
    WHEN known IS NULL AND problem <> '' THEN 'message-corrupt'
    WHEN known IS NULL THEN 'message-not-indexed'
    WHEN wanted = '' AND status = 'lost' AND problem = '' THEN 'message-returned'
    WHEN wanted = '' THEN 'message-dropped'
    WHEN (sha <> wanted OR problem <> '') AND sha <> accepted THEN 'message-corrupt'
    ELSE 'message-misfiled' END AS kind,
  if(cause <> '', concat(place, '/', name), id) AS subject, place, name, id, NULL AS mailbox, NULL AS entry,
  NULL AS folder, CAST(proper AS bigint) AS uid, if(cause <> '', cause, problem) AS detail
FROM ranked
WHERE cause <> '' OR NOT is_blocked
  AND (turn > 1 OR known IS NULL OR wanted = '' OR (sha <> wanted OR problem <> '') AND sha <> accepted OR NOT proper)
UNION ALL
SELECT 'message-lost', k.id, NULL, NULL, k.id, NULL, NULL, NULL, NULL, 'indexed, but its file is missing'
FROM table_rows k LEFT ANTI JOIN file_rows f ON f.part = 'message' AND f.id = k.id
LEFT ANTI JOIN unlistable c ON c.place IN ('messages', {day_of_k})
WHERE k.part = 'known' AND k.sha <> ''
UNION ALL
SELECT 'message-stray', concat(place, '/', name), place, name, NULL, NULL, NULL, NULL, NULL, problem
FROM file_rows WHERE part = 'message' AND id = ''
"""
_BLOBS = """
WITH needed AS (
  SELECT n.sha, min(n.id) AS message, count(*) AS uses, count_if(m.id IS NULL) AS unmarked FROM (
    SELECT sha, id FROM table_rows WHERE part = 'needed'
    UNION ALL
    SELECT explode(f.blobs), f.id FROM file_rows f
    LEFT ANTI JOIN table_rows k ON k.part = 'known' AND k.id = f.id
    WHERE f.part = 'message') n
  LEFT JOIN table_rows m ON m.part = 'damaged' AND m.id = n.id AND m.sha = n.sha
  GROUP BY n.sha
), unknown AS (
  SELECT count(*) > 0 AS is_blind FROM (
    SELECT f.id FROM file_rows f LEFT ANTI JOIN table_rows k ON k.part = 'known' AND k.id = f.id
    WHERE f.part = 'message' AND f.cause <> ''
    UNION ALL SELECT place FROM unlistable WHERE place LIKE 'messages%')
), ranked AS (
  SELECT f.*, n.sha AS wanted, row_number() OVER (
    PARTITION BY f.id ORDER BY f.problem = '' DESC, f.proper DESC, f.place) AS turn,
    max(f.cause <> '') OVER (PARTITION BY f.id) AS is_blocked, u.is_blind
  FROM file_rows f CROSS JOIN unknown u LEFT JOIN needed n ON n.sha = f.id
  WHERE f.part = 'blob' AND f.id <> ''
)
SELECT CASE
    WHEN cause <> '' THEN 'unreadable'
    WHEN turn > 1 THEN 'blob-duplicate'
    WHEN wanted IS NULL THEN 'blob-orphan'
    WHEN problem <> '' THEN 'blob-corrupt'
    ELSE 'blob-misfiled' END AS kind,
  if(cause <> '', concat(place, '/', name), id) AS subject, place, name, id, NULL AS mailbox, NULL AS entry,
  NULL AS folder, NULL AS uid, if(cause <> '', cause, problem) AS detail
FROM ranked
WHERE cause <> '' OR NOT is_blocked
  AND (turn > 1 OR wanted IS NULL AND NOT is_blind OR wanted IS NOT NULL AND problem <> '' OR NOT proper)
UNION ALL
SELECT 'blob-missing', n.sha, NULL, NULL, n.sha, NULL, NULL, NULL, NULL,
  concat('needed by ', n.message, if(n.uses > 1, concat(' and ', n.uses - 1, ' more'), ''))
FROM needed n LEFT ANTI JOIN file_rows f ON f.part = 'blob' AND f.id = n.sha
LEFT ANTI JOIN unlistable c ON c.place IN ('attachments', concat('attachments/', substr(n.sha, 1, 2)))
WHERE n.unmarked > 0
UNION ALL
SELECT 'blob-orphan', concat(place, '/', name), place, name, NULL, NULL, NULL, NULL, NULL, problem
FROM file_rows WHERE part = 'blob' AND id = ''
"""
_LINKS = """
WITH links AS (
  SELECT coalesce(l.mailbox, p.mailbox) AS mailbox, coalesce(l.entry, p.entry) AS entry,
    coalesce(l.name, p.name) AS name, coalesce(l.id, p.id) AS id, coalesce(l.uid, p.uid) AS uid,
    l.name IS NOT NULL AS there, p.name IS NOT NULL AS wanted, l.proper, l.target, coalesce(l.cause, '') AS cause
  FROM (SELECT * FROM file_rows WHERE part = 'link') l
  FULL OUTER JOIN (SELECT * FROM table_rows WHERE part = 'projection') p
    ON l.mailbox = p.mailbox AND l.entry = p.entry AND l.name = p.name
  WHERE l.name IS NULL OR p.name IS NULL OR NOT l.proper
)
SELECT CASE
    WHEN x.cause <> '' THEN 'unreadable'
    WHEN there AND wanted THEN 'projection-wrong-target'
    WHEN wanted THEN 'projection-missing'
    WHEN k.id IS NULL AND f.id IS NULL THEN 'projection-dangling'
    WHEN u.uid IS NOT NULL THEN 'projection-duplicate-uid'
    ELSE 'projection-orphan' END AS kind,
  concat(if(x.cause <> '', 'mailboxes/', ''), x.mailbox, '/', x.entry, '/', x.name) AS subject,
  NULL AS place, x.name, x.id, x.mailbox, x.entry, b.folder, x.uid,
  CASE WHEN x.cause <> '' THEN x.cause WHEN there AND wanted THEN concat('points to ', x.target) ELSE '' END AS detail
FROM links x
LEFT JOIN (SELECT mailbox, entry, folder FROM file_rows WHERE part = 'folder') d
  ON d.mailbox = x.mailbox AND d.entry = x.entry
LEFT JOIN (SELECT mailbox, entry, folder FROM table_rows WHERE part = 'base-folder') b
  ON b.mailbox = x.mailbox AND b.entry = x.entry
LEFT JOIN (SELECT id FROM table_rows WHERE part = 'known' AND sha <> '') k ON k.id = x.id
LEFT JOIN (SELECT DISTINCT id FROM file_rows WHERE part = 'message' AND (problem = '' OR cause <> '')) f ON f.id = x.id
LEFT ANTI JOIN unlistable c ON k.id IS NULL AND c.place IN ('messages', {day_of_x})
  OR wanted AND NOT there AND c.place IN ('mailboxes', {mailbox_of_x}, concat({mailbox_of_x}, '/', x.entry))
LEFT JOIN (SELECT folder, uid FROM table_rows WHERE part = 'projection') u ON u.folder = b.folder AND u.uid = x.uid
WHERE CASE WHEN x.cause <> '' THEN true
           WHEN wanted AND NOT there THEN d.entry IS NOT NULL
           WHEN wanted THEN true
           ELSE b.folder IS NOT NULL AND (d.folder IS NULL OR d.folder = b.folder)
             AND NOT (k.id IS NULL AND f.id IS NOT NULL AND x.proper) END
"""
_FOLDERS = f"""
WITH d AS (SELECT * FROM file_rows WHERE part = 'folder'),
     b AS (SELECT *, ((uid - 1) div {UID_STEP} + 1) * {UID_STEP} + 1 AS mark
           FROM table_rows WHERE part = 'base-folder')
SELECT CASE
    WHEN d.cause <> '' THEN 'unreadable'
    WHEN d.entry IS NULL THEN 'folder-row-without-path'
    WHEN d.problem = '{FOREIGN}' THEN 'folder-identity-foreign'
    WHEN b.folder IS NOT NULL AND d.folder IS NULL THEN 'folder-identity-damaged'
    WHEN d.folder = b.folder AND d.uid < b.mark THEN 'folder-identity-outdated'
    WHEN d.folder = b.folder THEN 'uidnext-too-low'
    WHEN b.folder IS NOT NULL THEN 'folder-two-ids'
    WHEN d.folder IS NULL THEN 'folder-unidentified'
    WHEN other.folder IS NOT NULL THEN 'folder-id-at-two-paths'
    ELSE 'folder-path-without-row' END AS kind,
  if(d.cause <> '', concat('mailboxes/', d.mailbox, '/', d.entry, '/.mailbox'),
     concat(coalesce(d.mailbox, b.mailbox), '/', coalesce(d.entry, b.entry))) AS subject,
  NULL AS place, coalesce(b.name, d.full_name) AS name,
  if(b.folder IS NOT NULL AND other.folder IS NULL, d.folder, NULL) AS id,
  coalesce(d.mailbox, b.mailbox) AS mailbox, coalesce(d.entry, b.entry) AS entry,
  coalesce(b.folder, d.folder) AS folder, d.links AS uid,
  coalesce(nullif(d.cause, ''), nullif(d.problem, ''), if(d.folder = b.folder,
    concat('UIDNEXT is ', b.uid, ', the UID mark in .mailbox is ', d.uid), '')) AS detail
FROM d FULL OUTER JOIN b ON d.mailbox = b.mailbox AND d.entry = b.entry
LEFT JOIN b other ON other.folder = d.folder
LEFT ANTI JOIN unlistable c ON c.place IN ('mailboxes', concat('mailboxes/', coalesce(d.mailbox, b.mailbox)),
  concat('mailboxes/', coalesce(d.mailbox, b.mailbox), '/', coalesce(d.entry, b.entry)))
WHERE d.entry IS NULL OR b.folder IS NULL OR d.folder IS NULL OR d.folder <> b.folder OR d.uid <> b.mark
"""  # noqa: S608 - constants
_MAILBOXES = """
WITH m AS (SELECT * FROM file_rows WHERE part = 'mailbox'),
     r AS (SELECT * FROM table_rows WHERE part = 'registration' AND status <> 'purged'),
     own AS (SELECT mailbox, count(folder) + count(nullif(cause, '')) AS identified, sum(links) AS links
             FROM file_rows WHERE part = 'folder' GROUP BY mailbox)
SELECT CASE
    WHEN m.mailbox IS NULL THEN 'registration-directory-missing'
    WHEN coalesce(own.identified, 0) + coalesce(own.links, 0) > 0 THEN 'registration-missing'
    ELSE 'registration-directory-orphan' END AS kind,
  coalesce(m.mailbox, r.mailbox) AS subject, NULL AS place, r.name, r.registration AS id,
  coalesce(m.mailbox, r.mailbox) AS mailbox,
  NULL AS entry, NULL AS folder, NULL AS uid, '' AS detail
FROM m FULL OUTER JOIN r ON m.mailbox = r.mailbox
LEFT JOIN own ON own.mailbox = m.mailbox
LEFT ANTI JOIN unlistable c ON c.place IN ('mailboxes', concat('mailboxes/', coalesce(m.mailbox, r.mailbox)))
WHERE m.mailbox IS NULL OR r.mailbox IS NULL
"""
_CACHES = """
SELECT 'cache-stale' AS kind, f.id AS subject, NULL AS place, NULL AS name, f.id, NULL AS mailbox, NULL AS entry,
  NULL AS folder, NULL AS uid, if(c.id IS NULL, 'the row is missing', 'the row differs') AS detail
FROM file_rows f
JOIN table_rows k ON k.part = 'known' AND k.id = f.id AND k.sha = f.sha
LEFT JOIN table_rows c ON c.part = 'cache' AND c.id = f.id
LEFT ANTI JOIN table_rows m ON m.part = 'damaged' AND m.id = f.id
WHERE f.part = 'message' AND f.proper AND f.cache_hash <> '' AND c.id IS NOT NULL AND c.sha <> f.cache_hash
"""
_RETURNED = """
WITH damaged AS (
  SELECT m.id, m.sha AS part, k.sha FROM table_rows m JOIN table_rows k ON k.part = 'known' AND k.id = m.id
  WHERE m.part = 'damaged' AND k.sha <> ''
), back AS (
  SELECT d.id, d.part FROM damaged d JOIN file_rows f ON f.part = 'blob' AND f.id = d.part AND f.problem = ''
  UNION
  SELECT d.id, d.part FROM damaged d JOIN file_rows f ON f.part = 'message' AND f.id = d.id AND f.sha = d.sha
  WHERE d.part = '' AND f.problem = ''
)
SELECT 'part-returned' AS kind, id AS subject, NULL AS place, part AS name, id, NULL AS mailbox, NULL AS entry,
  NULL AS folder, NULL AS uid, if(part = '', 'the intact file', concat('part ', part)) AS detail FROM back
"""
_DAY = "concat('messages/', substr({id}, 5, 4), '-', substr({id}, 9, 2), '-', substr({id}, 11, 2))"
#: Paths of directories, as SQL expressions for the placeholders of the queries.
_EXPRESSIONS = {
    "{day_of_k}": _DAY.format(id="k.id"),
    "{day_of_x}": _DAY.format(id="x.id"),
    "{mailbox_of_x}": "concat('mailboxes/', x.mailbox)",
}
#: Each query, with the domains that can give it rows: it runs if one of them differs.
_QUERIES = (
    (_MAILBOXES, {fingerprint.MAILBOX}),
    (_FOLDERS, {fingerprint.FOLDER}),
    (_LINKS, {fingerprint.LINK}),
    (_MESSAGES, {fingerprint.MESSAGE}),
    (_BLOBS, {fingerprint.BLOB, fingerprint.MESSAGE}),
    (_CACHES, {fingerprint.CACHE, fingerprint.MESSAGE}),
    (_RETURNED, {fingerprint.BLOB, fingerprint.MESSAGE}),
)


def reconcile(session: SparkSession, files: DataFrame, rows: DataFrame, differing: set[str]) -> DataFrame:
    """Join files and tables in the domains that differ; all findings as one DataFrame."""
    files.createOrReplaceTempView("file_rows")
    session.sql("SELECT place FROM file_rows WHERE part = 'unlistable'").createOrReplaceTempView("unlistable")
    rows.createOrReplaceTempView("table_rows")
    findings: DataFrame | None = None
    for query, domains in _QUERIES:
        if domains & differing:
            for name, expression in _EXPRESSIONS.items():
                query = query.replace(name, expression)
            part = session.sql(query).selectExpr(*_COLUMNS)
            findings = part if findings is None else findings.unionByName(part)
    if findings is None:
        raise ValueError("no domain differs")
    return findings
