-- Nodes are written in Kubernetes' protobuf form, which an older hub cannot read. Rows in JSON stay until they change.

SELECT 1; -- the column takes blobs as it takes text
