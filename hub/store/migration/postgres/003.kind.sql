CREATE TABLE {kind} (
  namespace text COLLATE "C" NOT NULL,
  name      text COLLATE "C" NOT NULL,
  uid       text COLLATE "C" NOT NULL,
  rev       bigint NOT NULL,           -- resourceVersion
  node      text COLLATE "C" NOT NULL, -- '' where a kind has none
  phase     text COLLATE "C" NOT NULL, -- '' where a kind has none
  object    {object} NOT NULL,         -- text: JSON, byte for byte as the hub wrote it; bytea: a sealed blob
  PRIMARY KEY (namespace, name)
);
