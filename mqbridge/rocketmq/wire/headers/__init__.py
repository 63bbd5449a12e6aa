"""The custom headers (extFields) of requests and responses: text values by name on the wire, typed attributes here.

There is one class per header, which encodes and decodes it. A field without a default is required; a field that is None is not
written. The name on the wire is the attribute's name in camel case, unless `named` gives another. If the name of a required field
is missing, decoding ignores case, because Go clients write `Topic` and `QueueId`.

Fields with the same meaning in several headers: `bname` is the name of the broker, which proxies need and brokers ignore;
`unit_mode` marks a deployment of several units, which mqbridge does not use; `order` in a POP request means that the group
consumes in order.
"""
