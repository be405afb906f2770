"""Where the elements of an array are: numpy's arrays, torch's tensors on the CPU, and buffers of floats."""
import ctypes

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
_TYPES = {"<f4": FLOAT32, "=f4": FLOAT32, "<f2": FLOAT16, "=f2": FLOAT16}
_TORCH = {"torch.float32": FLOAT32, "torch.bfloat16": BFLOAT16, "torch.float16": FLOAT16}
_WANTED = "float32, float16 or (torch) bfloat16"


class Memory:
    """address, count and dtype of an array's elements, and what keeps them."""

    def __init__(self, array, written):
        self.array = array
        if hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
            self._of_torch(array)
        elif hasattr(array, "mask"):
            raise TypeError("masked elements cannot be left out: give array.filled(0)")
        elif hasattr(array, "__array_interface__"):
            self._of_interface(array.__array_interface__, written)
        else:
            self._of_buffer(array, written)
        if self.address % (4 if self.dtype == FLOAT32 else 2):
            raise ValueError("the elements are not aligned in memory: give a copy of the array")

    def _of_torch(self, tensor):
        if str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
            raise TypeError("sparse tensors do not travel: give tensor.to_dense(), or make the layer with sparse=False")
        if tensor.device.type != "cpu":
            raise ValueError("the tensor is on %s: give one on the CPU" % tensor.device)
        if not tensor.is_contiguous():
            raise ValueError("the tensor is not contiguous: give tensor.contiguous()")
        if getattr(tensor, "is_neg", bool)():
            raise ValueError("the tensor is a negated view: give tensor.resolve_neg()")
        if str(tensor.dtype) not in _TORCH:
            raise TypeError("elements are %s; wanted are %s" % (tensor.dtype, _WANTED))
        self.address, self.count, self.dtype = tensor.data_ptr(), tensor.numel(), _TORCH[str(tensor.dtype)]

    def _of_interface(self, interface, written):
        if not hasattr(self.array, "__setitem__"):  # its memory is gone when this returns
            raise TypeError("%s is a single value: give an array of one element" % type(self.array).__name__)
        if interface["typestr"] not in _TYPES:
            raise TypeError("elements are %s; wanted are %s" % (interface["typestr"], _WANTED))
        if interface.get("strides") is not None:
            raise ValueError("the array is not contiguous: give numpy.ascontiguousarray(array)")
        self.address, read_only = interface["data"]
        if written and read_only:
            raise ValueError("the array cannot be written")
        self.dtype = _TYPES[interface["typestr"]]
        self.count = 1
        for extent in interface["shape"]:
            self.count *= extent

    def _of_buffer(self, array, written):
        try:
            view = memoryview(array)
        except TypeError:
            raise TypeError("%s is no array: wanted is one of numpy or torch, or a buffer of floats" %
                            type(array).__name__) from None
        if view.format not in ("f", "e"):
            raise TypeError("elements have the format %r; wanted are %s" % (view.format, _WANTED))
        if not view.c_contiguous:
            raise ValueError("the buffer is not contiguous")
        if view.readonly:
            if written:
                raise ValueError("the buffer cannot be written")
            self.array = (ctypes.c_char * view.nbytes).from_buffer_copy(view)
        else:
            self.array = (ctypes.c_char * view.nbytes).from_buffer(view)
        self.address = ctypes.addressof(self.array)
        self.dtype, self.count = FLOAT32 if view.format == "f" else FLOAT16, view.nbytes // view.itemsize
