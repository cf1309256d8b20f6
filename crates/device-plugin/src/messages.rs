//! The parts of the kubelet's device plugin API, `v1beta1`, that are read
//! (`k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto`). Messages that pass through are
//! never decoded for it, so fields that this program does not know survive.

use prost::{
    Message,
    bytes::{Buf, BufMut, Bytes, BytesMut},
    encoding::{self, DecodeContext, WireType},
};

/// The calls, as paths.
pub(super) const REGISTER: &str = "/v1beta1.Registration/Register";
pub(super) const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
pub(super) const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
pub(super) const PREFER: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
pub(super) const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub(super) version: String,
    /// The name of the plugin's socket, in the directory of the socket that it registers with.
    #[prost(string, tag = "2")]
    pub(super) endpoint: String,
    /// `nvidia.com/gpu`.
    #[prost(string, tag = "3")]
    pub(super) resource_name: String,
    #[prost(message, optional, tag = "4")]
    pub(super) options: Option<Options>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Options {
    #[prost(bool, tag = "1")]
    pub(super) pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub(super) get_preferred_allocation_available: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListAndWatchResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) devices: Vec<Device>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Device {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    /// `Healthy` or `Unhealthy`.
    #[prost(string, tag = "2")]
    pub(super) health: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PreferredAllocationRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Wish>,
}

/// What the kubelet is about to allocate to a container.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Wish {
    /// The devices to choose from, those of `required` among them.
    #[prost(string, repeated, tag = "1")]
    pub(super) available: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) required: Vec<String>,
    #[prost(int32, tag = "3")]
    pub(super) size: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PreferredAllocationResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Ids>,
}

/// The devices of a container: of an answer about preferences, or of a request to allocate.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Ids {
    #[prost(string, repeated, tag = "1")]
    pub(super) ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Ids>,
}

/// The number of the repeated field that each of these messages has: the devices of a list, the
/// containers of an answer.
const ENTRIES: u32 = 1;

/// Returns a message with more fields at the end of each of its entries, and everything else in it as
/// it is; `None` if it cannot be parsed, or `more` does not know what to add.
pub(super) fn extend_each(
    message: &Bytes,
    mut more: impl FnMut(Bytes) -> Option<Vec<u8>>,
) -> Option<Bytes> {
    let mut from = message.clone();
    let mut to = BytesMut::with_capacity(message.len());
    while from.has_remaining() {
        let before = from.clone();
        let (tag, kind) = encoding::decode_key(&mut from).ok()?;
        if (tag, kind) != (ENTRIES, WireType::LengthDelimited) {
            encoding::skip_field(kind, tag, &mut from, DecodeContext::default()).ok()?;
            to.put_slice(&before[..before.len() - from.len()]);
            continue;
        }
        let length = usize::try_from(encoding::decode_varint(&mut from).ok()?).ok()?;
        if length > from.remaining() {
            return None;
        }
        let own = from.split_to(length);
        let added = more(own.clone())?;
        encoding::encode_key(tag, kind, &mut to);
        encoding::encode_varint((own.len() + added.len()) as u64, &mut to);
        to.put_slice(&own);
        to.put_slice(&added);
    }
    Some(to.freeze())
}
