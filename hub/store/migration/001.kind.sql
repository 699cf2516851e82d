CREATE TABLE {kind} (
  namespace TEXT NOT NULL,
  name      TEXT NOT NULL,
  uid       TEXT NOT NULL,
  rev       INTEGER NOT NULL, -- resourceVersion
  node      TEXT NOT NULL,    -- '' where a kind has none
  phase     TEXT NOT NULL,    -- '' where a kind has none
  object    ANY NOT NULL,     -- JSON text; secrets: a sealed blob
  PRIMARY KEY (namespace, name)
) STRICT; -- with a rowid: objects of 2 kB are written five times faster in batches than without
