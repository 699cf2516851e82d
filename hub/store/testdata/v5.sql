-- A database of schema 3, dumped. Never edit it: it is what a hub of that version has left.
BEGIN TRANSACTION;
CREATE TABLE meta (            -- revision, hub-id, secrets-key-id, ...
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES('audit-head','3 293f0ac05faefece3bd564eb573fbd6698e53974477806a5201616dbeb985b6a 539');
INSERT INTO meta VALUES('hub-id','oldhub');
INSERT INTO meta VALUES('program-version','1.0');
INSERT INTO meta VALUES('revision','7');
INSERT INTO meta VALUES('secrets-key-id','0011223344556677');
CREATE TABLE kinds (           -- which tables hold objects
  name TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
INSERT INTO kinds VALUES('nodes');
INSERT INTO kinds VALUES('pods');
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
INSERT INTO join_tokens VALUES('abcdefgh',X'00','oslo','','{}',5,1,'2026-11-01T10:00:00.000Z','anna','2036-11-01T10:00:00.000Z','',1,'{}');
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
INSERT INTO enrolments VALUES('pi-1','00ff','m-1','oslo','{"rack":"a"}','abcdefgh','2026-11-01T10:00:00.000Z','2027-11-01T10:00:00.000Z');
CREATE TABLE users (
  name     TEXT PRIMARY KEY,
  role     TEXT NOT NULL,
  password TEXT NOT NULL,      -- argon2id, PHC string
  created  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO users VALUES('anna','admin','$argon2id$v=19$m=19456,t=2,p=1$AAAA$AAAA','2026-11-01T10:00:00.000Z');
CREATE TABLE sessions (
  hash    BLOB PRIMARY KEY,    -- sha256 of the cookie
  user    TEXT NOT NULL REFERENCES users (name) ON DELETE CASCADE,
  csrf    TEXT NOT NULL,
  source  TEXT NOT NULL,       -- address that logged in
  created TEXT NOT NULL,
  expires TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO sessions VALUES(X'01','anna','c','127.0.0.1','2026-11-01T10:00:00.000Z','2026-11-02T10:00:00.000Z');
CREATE TABLE api_tokens (
  id      TEXT PRIMARY KEY,
  hash    BLOB NOT NULL,       -- sha256 of the secret
  user    TEXT NOT NULL REFERENCES users (name) ON DELETE CASCADE,
  note    TEXT NOT NULL,
  created TEXT NOT NULL,
  expires TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO api_tokens VALUES('t1',X'02','anna','laptop','2026-11-01T10:00:00.000Z','2027-11-01T10:00:00.000Z');
CREATE TABLE revoked_clients ( -- people's certificates issued at or before this moment are no longer good
  name   TEXT PRIMARY KEY,
  before TEXT NOT NULL
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
INSERT INTO audit VALUES(1,'2026-11-01T10:00:00.000Z','anna','session','127.0.0.1','create','pods','default','kiosk-1',201,'','',1,0,X'');
INSERT INTO audit VALUES(2,'2026-11-22T04:27:36.379Z','the hub','','','begin','audit','','',200,'the chain of hashes begins with this record; 1 older records are not in it','',1,291,X'308029768bd21155d0299a318b1a80129ad5d28f20a56e507a11ae2880e61734');
INSERT INTO audit VALUES(3,'2026-11-22T10:00:00.000Z','anna','certificate','127.0.0.1','delete','pods','default','kiosk-2',200,'','',1,539,X'293f0ac05faefece3bd564eb573fbd6698e53974477806a5201616dbeb985b6a');
CREATE TABLE IF NOT EXISTS "nodes" (
  namespace TEXT NOT NULL,
  name      TEXT NOT NULL,
  uid       TEXT NOT NULL,
  rev       INTEGER NOT NULL, -- resourceVersion
  node      TEXT NOT NULL,    -- '' where a kind has none
  phase     TEXT NOT NULL,    -- '' where a kind has none
  object    ANY NOT NULL,     -- JSON text; secrets: a sealed blob
  PRIMARY KEY (namespace, name)
) STRICT;
INSERT INTO nodes VALUES('','pi-1','n-1',4,'','','{"kind":"Node"}');
CREATE TABLE IF NOT EXISTS "pods" (
  namespace TEXT NOT NULL,
  name      TEXT NOT NULL,
  uid       TEXT NOT NULL,
  rev       INTEGER NOT NULL, -- resourceVersion
  node      TEXT NOT NULL,    -- '' where a kind has none
  phase     TEXT NOT NULL,    -- '' where a kind has none
  object    ANY NOT NULL,     -- JSON text; secrets: a sealed blob
  PRIMARY KEY (namespace, name)
) STRICT;
INSERT INTO pods VALUES('default','kiosk-1','p-1',7,'pi-1','Running','{"kind":"Pod"}');
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('audit',3);
CREATE INDEX audit_at ON audit (at);
COMMIT;
PRAGMA user_version = 5;
