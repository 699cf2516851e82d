-- The schema after every migration (5), with one table of objects as an example: go test ./hub/store -update

CREATE TABLE api_tokens (
  id      TEXT PRIMARY KEY,
  hash    BLOB NOT NULL,       -- sha256 of the secret
  user    TEXT NOT NULL REFERENCES users (name) ON DELETE CASCADE,
  note    TEXT NOT NULL,
  created TEXT NOT NULL,
  expires TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
  id        INTEGER PRIMARY KEY AUTOINCREMENT,
  at        TEXT NOT NULL,
  who       TEXT NOT NULL,
  via       TEXT NOT NULL,     -- session, token, certificate, join token, command line
  source    TEXT NOT NULL,     -- address
  verb      TEXT NOT NULL,
  resource  TEXT NOT NULL,
  namespace TEXT NOT NULL,
  name      TEXT NOT NULL,
  code      INTEGER NOT NULL,  -- as HTTP's
  message   TEXT NOT NULL
, until TEXT NOT NULL DEFAULT '', count INTEGER NOT NULL DEFAULT 1, total INTEGER NOT NULL DEFAULT 0, hash BLOB NOT NULL DEFAULT x'') STRICT;

CREATE INDEX audit_at ON audit (at);

CREATE TABLE enrolments (      -- the one key that speaks for a node; no row: the node is not let in
  node     TEXT PRIMARY KEY,
  key      TEXT NOT NULL,      -- sha256 of the public key, hex
  machine  TEXT NOT NULL,
  site     TEXT NOT NULL,
  labels   TEXT NOT NULL,      -- JSON object, from the token
  token    TEXT NOT NULL,      -- id of the token it joined with
  enrolled TEXT NOT NULL,
  expires  TEXT NOT NULL       -- of the newest certificate
) STRICT, WITHOUT ROWID;

CREATE TABLE join_tokens (
  id         TEXT PRIMARY KEY,
  hash       BLOB NOT NULL,    -- sha256 of the secret
  site       TEXT NOT NULL,
  node       TEXT NOT NULL,    -- '' = any name
  labels     TEXT NOT NULL,    -- JSON object
  uses       INTEGER NOT NULL, -- how often it may be used
  used       INTEGER NOT NULL,
  created    TEXT NOT NULL,
  created_by TEXT NOT NULL,
  expires    TEXT NOT NULL,
  revoked    TEXT NOT NULL     -- '' = not revoked
, approval INTEGER NOT NULL DEFAULT 0, names TEXT NOT NULL DEFAULT '{}') STRICT, WITHOUT ROWID;

CREATE TABLE kinds (           -- which tables hold objects
  name TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE meta (            -- revision, hub-id, secrets-key-id, ...
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE "pods" (
  namespace TEXT NOT NULL,
  name      TEXT NOT NULL,
  uid       TEXT NOT NULL,
  rev       INTEGER NOT NULL, -- resourceVersion
  node      TEXT NOT NULL,    -- '' where a kind has none
  phase     TEXT NOT NULL,    -- '' where a kind has none
  object    ANY NOT NULL,     -- JSON text; secrets: a sealed blob
  PRIMARY KEY (namespace, name)
) STRICT;

CREATE TABLE revoked_clients ( -- people's certificates issued at or before this moment are no longer good
  name   TEXT PRIMARY KEY,
  before TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
  hash    BLOB PRIMARY KEY,    -- sha256 of the cookie
  user    TEXT NOT NULL REFERENCES users (name) ON DELETE CASCADE,
  csrf    TEXT NOT NULL,
  source  TEXT NOT NULL,       -- address that logged in
  created TEXT NOT NULL,
  expires TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
  name     TEXT PRIMARY KEY,
  role     TEXT NOT NULL,
  password TEXT NOT NULL,      -- argon2id, PHC string
  created  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
