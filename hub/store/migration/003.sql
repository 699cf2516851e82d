-- A join token may want an administrator's word for each device.

ALTER TABLE join_tokens ADD COLUMN approval INTEGER NOT NULL DEFAULT 0; -- 1: whoever joins with it waits for approval
