ALTER TABLE {kind} ALTER COLUMN object TYPE {stored} USING {converted};
