-- A join token may name its devices by their serial numbers; an older hub would give them other names.

ALTER TABLE join_tokens ADD COLUMN names text COLLATE "C" NOT NULL DEFAULT '{}'; -- JSON: DeviceNames
