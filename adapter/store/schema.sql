-- The index: mutable state and the indexes queries need. Everything but the caches follows from journal and files.

CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;

CREATE TABLE mailbox_registrations (
    registration_id TEXT PRIMARY KEY,
    address         TEXT NOT NULL,
    status          TEXT NOT NULL CHECK (status IN ('active', 'inactive', 'stashed', 'purged')),
    directory       TEXT NOT NULL,            -- below mailboxes/
    created_at      INTEGER NOT NULL,
    changed_at      INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX one_active_registration ON mailbox_registrations (address) WHERE status = 'active';
CREATE INDEX registrations_of_address ON mailbox_registrations (address);

CREATE TABLE folders (
    folder_id       INTEGER PRIMARY KEY,      -- 48 random bits, shown as mbx-<12 hex>
    registration_id TEXT NOT NULL,
    name            TEXT NOT NULL,
    special_use     TEXT NOT NULL,
    uidvalidity     INTEGER NOT NULL,
    uidnext         INTEGER NOT NULL,
    highestmodseq   INTEGER NOT NULL,
    messages        INTEGER NOT NULL DEFAULT 0,
    unseen          INTEGER NOT NULL DEFAULT 0,
    deleted         INTEGER NOT NULL DEFAULT 0,
    size            INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX folder_names ON folders (registration_id, name);

CREATE TABLE subscriptions (
    registration_id TEXT NOT NULL,
    name            TEXT NOT NULL,            -- outlives the folder
    PRIMARY KEY (registration_id, name)
) WITHOUT ROWID;

CREATE TABLE messages (
    message_id      TEXT PRIMARY KEY,         -- msg-…, names the canonical file
    arrived_at      INTEGER NOT NULL,         -- seconds since the epoch
    sender          TEXT NOT NULL,            -- envelope sender; '' is the null sender
    header_from     TEXT NOT NULL,
    subject         TEXT NOT NULL,
    header_id       TEXT NOT NULL,            -- Message-ID; '' where there is none
    thread_id       TEXT NOT NULL,
    size            INTEGER NOT NULL,         -- of the octets
    wire_sha256     TEXT NOT NULL,
    file_sha256     TEXT NOT NULL,
    unlinked_at     INTEGER                   -- when its last projection or outbox row went; collected later
) WITHOUT ROWID;
CREATE INDEX messages_by_header_id ON messages (header_id) WHERE header_id <> '';
CREATE INDEX messages_by_thread ON messages (thread_id);
CREATE INDEX messages_unlinked ON messages (unlinked_at) WHERE unlinked_at IS NOT NULL;

CREATE TABLE message_recipients (
    message_id      TEXT NOT NULL,
    address         TEXT NOT NULL,
    kind            TEXT NOT NULL CHECK (kind IN ('to', 'cc', 'bcc')),
    PRIMARY KEY (message_id, address)
) WITHOUT ROWID;

CREATE TABLE attachments (
    sha256          TEXT PRIMARY KEY,
    size            INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE message_attachments (
    message_id      TEXT NOT NULL,
    position        INTEGER NOT NULL,
    sha256          TEXT NOT NULL,
    role            TEXT NOT NULL CHECK (role IN ('attachment', 'part')),  -- part: needed for the octets only
    name            TEXT NOT NULL,
    type            TEXT NOT NULL,
    size            INTEGER NOT NULL,
    PRIMARY KEY (message_id, position)
) WITHOUT ROWID;
CREATE INDEX message_attachments_by_blob ON message_attachments (sha256);

CREATE TABLE mailbox_projections (
    folder_id       INTEGER NOT NULL,
    uid             INTEGER NOT NULL,
    message_id      TEXT NOT NULL,
    internal_date   INTEGER NOT NULL,
    saved_at        INTEGER NOT NULL,
    PRIMARY KEY (folder_id, uid)
) WITHOUT ROWID;
CREATE INDEX projections_of_message ON mailbox_projections (message_id);

CREATE TABLE mailbox_state (
    folder_id       INTEGER NOT NULL,
    uid             INTEGER NOT NULL,
    flags           INTEGER NOT NULL,         -- bits; named by the virtual columns below
    keywords        TEXT NOT NULL,            -- sorted, separated by one space
    modseq          INTEGER NOT NULL,
    "read"          INTEGER AS (flags & 1) VIRTUAL,
    answered        INTEGER AS ((flags >> 1) & 1) VIRTUAL,
    starred         INTEGER AS ((flags >> 2) & 1) VIRTUAL,
    deleted         INTEGER AS ((flags >> 3) & 1) VIRTUAL,
    draft           INTEGER AS ((flags >> 4) & 1) VIRTUAL,
    archived        INTEGER AS ((flags >> 5) & 1) VIRTUAL,
    PRIMARY KEY (folder_id, uid)
) WITHOUT ROWID;

CREATE TABLE expunged (
    folder_id       INTEGER NOT NULL,
    modseq          INTEGER NOT NULL,
    uids            TEXT NOT NULL,            -- an IMAP sequence set
    PRIMARY KEY (folder_id, modseq)
) WITHOUT ROWID;

CREATE TABLE thread_summaries (
    registration_id   TEXT NOT NULL,
    thread_id         TEXT NOT NULL,
    messages          INTEGER NOT NULL,
    unread            INTEGER NOT NULL,
    latest_message_id TEXT NOT NULL,          -- message ids sort by arrival
    PRIMARY KEY (registration_id, thread_id)
) WITHOUT ROWID;

CREATE TABLE outbox (
    queue_id        TEXT PRIMARY KEY,
    message_id      TEXT NOT NULL,
    sender          TEXT NOT NULL,            -- envelope sender; '' is the null sender
    return_to       TEXT NOT NULL,            -- the local address whose inbox gets reports; '': the sender's
    recipient       TEXT NOT NULL,
    notify          TEXT,                     -- RFC 3461: as it is passed on; NULL where it was not given
    orcpt           TEXT,
    ret             TEXT,
    envid           TEXT,
    body            TEXT NOT NULL,            -- 7BIT, 8BITMIME or BINARYMIME, as declared
    smtputf8        INTEGER NOT NULL,
    requiretls      INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    next_attempt_at INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    delay_warned    INTEGER NOT NULL DEFAULT 0,
    last_status     TEXT NOT NULL DEFAULT '',
    expires_at      INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX outbox_by_time ON outbox (next_attempt_at);
CREATE INDEX outbox_of_message ON outbox (message_id);

-- How far those have come who follow the store or bring mail into it.
CREATE TABLE IF NOT EXISTS bookmarks (
    owner           TEXT NOT NULL,
    item            TEXT NOT NULL,
    value           TEXT NOT NULL,
    PRIMARY KEY (owner, item)
) WITHOUT ROWID;

-- Caches: may be emptied at any time; filled again from the canonical files.
CREATE TABLE cache_messages (
    message_id      TEXT PRIMARY KEY,
    recipe          BLOB NOT NULL,            -- how to rebuild the octets without reading YAML
    envelope        BLOB NOT NULL,            -- IMAP ENVELOPE, encoded
    structure       BLOB NOT NULL,            -- IMAP BODYSTRUCTURE, encoded
    outline         BLOB NOT NULL,            -- where the parts lie in the octets
    preview         TEXT NOT NULL
) WITHOUT ROWID;

-- What the sender asked of the delivery (RFC 3461), for each recipient who has the message here; only where anything was.
CREATE TABLE IF NOT EXISTS dsn_requests (
    message_id      TEXT NOT NULL,
    recipient       TEXT NOT NULL,            -- as the sender named it
    notify          TEXT,                     -- as it is passed on; NULL where it was not given
    orcpt           TEXT,
    ret             TEXT,
    envid           TEXT,
    PRIMARY KEY (message_id, recipient)
) WITHOUT ROWID;

-- Recovery and repair ask which registration a directory belongs to.
CREATE INDEX IF NOT EXISTS registrations_of_directory ON mailbox_registrations (directory);

-- Content that is known to be lost: a placeholder stands for it in the octets.
CREATE TABLE IF NOT EXISTS damaged_parts (
    message_id      TEXT NOT NULL,
    part            TEXT NOT NULL,            -- SHA-256 of a lost blob; '': the canonical file is damaged
    found           TEXT NOT NULL,            -- SHA-256 of the damaged canonical file; '' for a blob
    PRIMARY KEY (message_id, part)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS damaged_blobs ON damaged_parts (part) WHERE part <> '';

-- Where messages were of which nothing is left: if the canonical file comes back, so do they.
CREATE TABLE IF NOT EXISTS lost_places (
    message_id      TEXT NOT NULL,
    folder_id       INTEGER NOT NULL,
    uid             INTEGER NOT NULL,
    internal_date   INTEGER NOT NULL,
    saved_at        INTEGER NOT NULL,
    flags           INTEGER NOT NULL,
    keywords        TEXT NOT NULL,
    PRIMARY KEY (message_id, folder_id, uid)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lost_places_of_folder ON lost_places (folder_id);
