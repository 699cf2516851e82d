-- The audit becomes a chain: each record has the hash of the one before it and of itself.

ALTER TABLE audit ADD COLUMN until TEXT NOT NULL DEFAULT '';      -- of a record that stands for several: when the last was
ALTER TABLE audit ADD COLUMN count INTEGER NOT NULL DEFAULT 1;    -- how many it stands for
ALTER TABLE audit ADD COLUMN total INTEGER NOT NULL DEFAULT 0;    -- bytes of this record and of all before it
ALTER TABLE audit ADD COLUMN hash BLOB NOT NULL DEFAULT x'';      -- sha256 of the hash before it and of itself; empty: from before the chain began
