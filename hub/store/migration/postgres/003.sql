-- What a hub keeps, in PostgreSQL: as migrations 001 to 003 make it in SQLite. Later steps have a file for each.
-- Text is compared byte by byte (COLLATE "C"), whatever language the database has: its order is the order of time and of names.

CREATE TABLE leader (             -- one row; whoever writes anything locks it first, and the hub only as long as the token is its own
  one     integer PRIMARY KEY CHECK (one = 1),
  token   bigint NOT NULL,        -- grows with each hub that takes over
  tx      bigint NOT NULL,        -- grows with each transaction of the hub: so it knows what became of a COMMIT without an answer
  who     text COLLATE "C" NOT NULL,
  written text COLLATE "C" NOT NULL -- when, by the clock of whoever wrote
);
INSERT INTO leader (one, token, tx, who, written) VALUES (1, 0, 0, '', '');

CREATE TABLE meta (               -- revision, hub-id, schema, secrets-key-id, ...
  key   text COLLATE "C" PRIMARY KEY,
  value text COLLATE "C" NOT NULL
);

CREATE TABLE kinds (              -- which tables hold objects
  name text COLLATE "C" PRIMARY KEY
);

CREATE TABLE join_tokens (
  id         text COLLATE "C" PRIMARY KEY,
  hash       bytea NOT NULL,      -- sha256 of the secret
  site       text COLLATE "C" NOT NULL,
  node       text COLLATE "C" NOT NULL, -- '' = any name
  labels     text COLLATE "C" NOT NULL, -- JSON object
  uses       bigint NOT NULL,     -- how often it may be used
  used       bigint NOT NULL,
  created    text COLLATE "C" NOT NULL,
  created_by text COLLATE "C" NOT NULL,
  expires    text COLLATE "C" NOT NULL,
  revoked    text COLLATE "C" NOT NULL, -- '' = not revoked
  approval   bigint NOT NULL DEFAULT 0  -- 1: whoever joins with it waits for approval
);

CREATE TABLE enrolments (
  node     text COLLATE "C" PRIMARY KEY,
  key      text COLLATE "C" NOT NULL, -- sha256 of the public key, hex
  machine  text COLLATE "C" NOT NULL,
  site     text COLLATE "C" NOT NULL,
  labels   text COLLATE "C" NOT NULL, -- JSON object, from the token
  token    text COLLATE "C" NOT NULL, -- id of the token it joined with
  enrolled text COLLATE "C" NOT NULL,
  expires  text COLLATE "C" NOT NULL  -- of the newest certificate
);

CREATE TABLE users (
  name     text COLLATE "C" PRIMARY KEY,
  role     text COLLATE "C" NOT NULL,
  password text COLLATE "C" NOT NULL, -- argon2id, PHC string
  created  text COLLATE "C" NOT NULL
);

CREATE TABLE sessions (
  hash    bytea PRIMARY KEY,      -- sha256 of the cookie
  "user"  text COLLATE "C" NOT NULL REFERENCES users (name) ON DELETE CASCADE,
  csrf    text COLLATE "C" NOT NULL,
  source  text COLLATE "C" NOT NULL, -- address that logged in
  created text COLLATE "C" NOT NULL,
  expires text COLLATE "C" NOT NULL
);

CREATE TABLE api_tokens (
  id      text COLLATE "C" PRIMARY KEY,
  hash    bytea NOT NULL,         -- sha256 of the secret
  "user"  text COLLATE "C" NOT NULL REFERENCES users (name) ON DELETE CASCADE,
  note    text COLLATE "C" NOT NULL,
  created text COLLATE "C" NOT NULL,
  expires text COLLATE "C" NOT NULL
);

CREATE TABLE revoked_clients (    -- people's certificates issued at or before this moment are no longer good
  name   text COLLATE "C" PRIMARY KEY,
  before text COLLATE "C" NOT NULL
);

CREATE TABLE audit (
  id        bigint PRIMARY KEY,
  at        text COLLATE "C" NOT NULL,
  who       text COLLATE "C" NOT NULL,
  via       text COLLATE "C" NOT NULL, -- session, token, certificate, join token, command line
  source    text COLLATE "C" NOT NULL, -- address
  verb      text COLLATE "C" NOT NULL,
  resource  text COLLATE "C" NOT NULL,
  namespace text COLLATE "C" NOT NULL,
  name      text COLLATE "C" NOT NULL,
  code      bigint NOT NULL,      -- as HTTP's
  message   text COLLATE "C" NOT NULL,
  until     text COLLATE "C" NOT NULL DEFAULT '', -- of a record that stands for several: when the last was
  count     bigint NOT NULL DEFAULT 1,            -- how many it stands for
  total     bigint NOT NULL DEFAULT 0,            -- bytes of this record and of all before it
  hash      bytea NOT NULL DEFAULT ''             -- sha256 of the hash before it and of itself; empty: from before the chain began
);
CREATE INDEX audit_at ON audit (at);
