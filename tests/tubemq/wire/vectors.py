"""Golden bytes captured from a Java producer."""

from mqbridge.tubemq.wire.pb.master_pb2 import ApprovedClientConfig, RegisterRequestP2M

CLIENT_ID = "192.0.2.2-24782-1285255605477-1678253010-2.5.0"

REGISTER_BODY = bytes.fromhex(
    "0a2e"
    + CLIENT_ID.encode().hex()
    + "18ffffffffffffffffff01"
    + "2209"
    + b"192.0.2.2".hex()
    + "3207"
    + b"17.0.15".hex()
    + "3a0b08feffffffffffffffff01"
)
REGISTER_PAYLOAD = bytes.fromhex("020800" + "0408011003" + "63" + "0801" + "10904e" + "1a5c") + REGISTER_BODY
REGISTER_FRAME = bytes.fromhex("ff7ff4fe00000001000000010000006c") + REGISTER_PAYLOAD

REGISTER_REQUEST = RegisterRequestP2M(
    clientId=CLIENT_ID,
    brokerCheckSum=-1,
    hostName="192.0.2.2",
    jdkVersion="17.0.15",
    appdConfig=ApprovedClientConfig(configId=-2),
)
